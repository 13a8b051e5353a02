// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// deviceSysfs opens the device's directory in sysfs. What /sys shows belongs
// to the network namespace in which it was mounted, which need not be ours:
// so it mounts a sysfs of its own, attached nowhere, and uses /sys only where
// that is not allowed and /sys has this very device.
func deviceSysfs(device string, index int) (fs.FS, func(), error) {
	mount, err := mountSysfs()
	if err == nil {
		dir := os.DirFS(fmt.Sprintf("/proc/self/fd/%d/class/net/%s", mount, device))
		return dir, func() { unix.Close(mount) }, nil
	}
	dir := os.DirFS("/sys/class/net/" + device)
	text, err := fs.ReadFile(dir, "ifindex")
	if err != nil {
		return nil, nil, err
	}
	if got, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || got != index {
		return nil, nil, fmt.Errorf("/sys/class/net/%s is another device (of another network namespace): %w", device, fs.ErrNotExist)
	}
	return dir, func() {}, nil
}

// mountSysfs mounts the sysfs of the thread's network namespace without
// attaching it to the file tree; it is gone when the descriptor is closed.
func mountSysfs() (int, error) {
	fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, err
	}
	return unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}
