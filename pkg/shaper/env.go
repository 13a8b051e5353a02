// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// The directories of a host.
const (
	DefaultBPFFS  = "/sys/fs/bpf/cakectl"
	DefaultRunDir = "/run/cakectl"
)

var (
	// ErrNotAttached means that nothing of ours is on the device.
	ErrNotAttached = errors.New("not attached")
	// ErrBusy means that another process is changing the device, or runs its controller.
	ErrBusy = errors.New("another cakectl is at work")
)

// Env is where a host keeps state, and what this process prefers.
type Env struct {
	// BPFFS is the directory for pins, on a BPF file system.
	BPFFS string
	// RunDir is the directory for records, locks and sockets.
	RunDir string
	// Hook forces the egress hook; empty takes tcx, else clsact.
	Hook loader.Hook
	Log  *slog.Logger
	// Loads, if set, bounds how many data paths are loaded at a time: each takes the verifier's time and
	// tens of megabytes, and nothing else that could keep another device waiting.
	Loads *semaphore.Weighted

	// fault, if set by a test, is asked before each step of an attach and makes it fail.
	fault func(step string) error
}

// pins is the directory of the device's pins. A BPF file system refuses dots, which names of VLAN
// devices have (eth0.10): they are escaped as in URLs.
func (e Env) pins(device string) string {
	return filepath.Join(e.BPFFS, strings.NewReplacer("%", "%25", ".", "%2E").Replace(device))
}

// pinned is the device of a directory of pins.
func pinned(dir string) string { return strings.NewReplacer("%25", "%", "%2E", ".").Replace(dir) }

func (e Env) record(device string) string { return filepath.Join(e.RunDir, device+".json") }

// prepare makes the directories.
func (e Env) prepare() error {
	if err := os.MkdirAll(e.RunDir, 0o750); err != nil {
		return fmt.Errorf("make the run directory: %w", err)
	}
	if err := e.mountBPFFS(); err != nil {
		return err
	}
	if err := os.MkdirAll(e.BPFFS, 0o750); err != nil {
		return fmt.Errorf("make the directory for pins: %w", err)
	}
	return nil
}

// mountBPFFS mounts a BPF file system in the usual place where nobody has yet: hosts without
// systemd, and what runs under `ip netns exec`, which brings a /sys of its own.
func (e Env) mountBPFFS() error {
	parent := filepath.Dir(e.BPFFS)
	var stat unix.Statfs_t
	if err := unix.Statfs(parent, &stat); err != nil {
		return fmt.Errorf("look for the BPF file system of the pins at %s: %w", parent, err)
	}
	if stat.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if e.BPFFS != DefaultBPFFS {
		return fmt.Errorf("%s is not on a BPF file system: mount one (mount -t bpf bpf %s)", e.BPFFS, parent)
	}
	if err := unix.Mount("bpf", parent, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system at %s: %w", parent, err)
	}
	return nil
}

// pinsVanish tells whether pins are lost with this process's mount namespace: under `ip netns exec`
// the BPF file system is visible to that one command only.
func (e Env) pinsVanish() bool {
	var ours unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &ours); err != nil {
		return false
	}
	// The first process is in the namespace that lasts; where it may not be looked at, the process
	// that started this one is the best guess.
	for _, pid := range []string{"1", strconv.Itoa(os.Getppid())} {
		var theirs, here, there unix.Stat_t
		if unix.Stat("/proc/"+pid+"/ns/mnt", &theirs) != nil {
			continue
		}
		if ours.Ino == theirs.Ino {
			return false
		}
		dir := filepath.Dir(e.BPFFS)
		if unix.Stat(dir, &here) != nil {
			return false
		}
		return unix.Stat("/proc/"+pid+"/root"+dir, &there) != nil || here.Dev != there.Dev
	}
	return false
}

// checkKeep refuses to leave shaping behind that would end with the process.
func (e Env) checkKeep(spec config.Spec) error {
	if !spec.Keep || !e.pinsVanish() {
		return nil
	}
	return fmt.Errorf("keep %s shaped: the BPF file system at %s is this process's own and ends with it, as under ip netns exec: enter the namespace by nsenter --net=/run/netns/NAME instead, or do without --keep (in a file: keep: false)", spec.Device, filepath.Dir(e.BPFFS))
}

// recordVersion is the version of the layout of [record].
const recordVersion = 1

// record is what outlives the process beside the pins.
type record struct {
	Version int `json:"version"`
	// Ifindex and Netns identify the device: a name alone may come to mean another.
	Ifindex int    `json:"ifindex"`
	Netns   uint64 `json:"netns"`
	// Build is the program that runs, and LinkSpeed what percentages are of.
	Build     string     `json:"build"`
	LinkSpeed rates.Rate `json:"link_speed_bits_per_second"`

	Spec       config.Spec       `json:"spec"`
	FQ         qdisc.FQOptions   `json:"fq"`
	Attachment loader.Attachment `json:"attachment"`
	// Found is the device before it was touched.
	Found qdisc.Journal `json:"found"`
}

func (e Env) readRecord(device string) (record, error) {
	var r record
	text, err := os.ReadFile(e.record(device))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%s: %w", device, ErrNotAttached)
	}
	if err != nil {
		return r, fmt.Errorf("read the record of %s: %w", device, err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read the record of %s: %s is damaged: %w; without that file, cakectl detach %[1]s takes the shaping off and gives the kernel's defaults back", device, e.record(device), err)
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("the record of %s has layout %d and this cakectl knows %d: detach with the version that attached", device, r.Version, recordVersion)
	}
	return r, nil
}

// The kernel's limits on super-packets, for devices whose own are not known any more.
const (
	kernelGSOBytes    = 65536
	kernelGSOSegments = 65535
)

// RecordLost tells whether the device is shaped, by its pins, and what it was like before is not known.
func (e Env) RecordLost(device string) bool {
	_, noRecord := os.Stat(e.record(device))
	_, noPins := os.Stat(e.pins(device))
	return errors.Is(noRecord, fs.ErrNotExist) && noPins == nil
}

// lostRecord stands in for the record of a device whose pins are there but whose record is not:
// somebody cleared the run directory. What was there before is not known then, and the kernel's
// defaults take its place.
func (e Env) lostRecord(device string) (record, bool) {
	if _, err := os.Stat(e.pins(device)); err != nil {
		return record{}, false
	}
	link, err := netlink.LinkByName(device)
	if err != nil {
		return record{}, false
	}
	netns, err := Netns()
	if err != nil {
		return record{}, false
	}
	found, err := qdisc.Capture(link)
	if err != nil {
		return record{}, false
	}
	found.GSOMaxSizeBytes, found.GSOMaxSegments = kernelGSOBytes, kernelGSOSegments
	if found.GSOIPv4MaxSizeBytes != 0 {
		found.GSOIPv4MaxSizeBytes = kernelGSOBytes
	}
	attachment := loader.Attachment{Hook: loader.TCX}
	if _, err := os.Stat(filepath.Join(e.pins(device), loader.LinkPin)); err != nil {
		// An empty clsact qdisc is likelier ours than somebody's.
		attachment = loader.Attachment{Hook: loader.Clsact, MadeClsact: true}
	}
	return record{
		Version: recordVersion, Ifindex: link.Attrs().Index, Netns: netns,
		Spec: config.New(device, rates.Value{}), Attachment: attachment, Found: found,
	}, true
}

// writeRecord replaces the record in one step, on disk before it returns.
func (e Env) writeRecord(r record) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", r.Spec.Device, err)
	}
	path := e.record(r.Spec.Device)
	err = os.WriteFile(path+".new", append(text, '\n'), 0o640)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new") // it may not be there
		return fmt.Errorf("write the record of %s: %w", r.Spec.Device, err)
	}
	return nil
}

func (e Env) removeRecord(device string) error {
	if err := os.Remove(e.record(device)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of %s: %w", device, err)
	}
	return nil
}

// List names the devices that are attached, or half so, but for those that live in another network namespace.
func List(env Env) ([]string, error) {
	entries, err := os.ReadDir(env.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return env.withoutRecord(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the attached devices: %w", err)
	}
	netns, err := Netns()
	if err != nil {
		return nil, err
	}
	var devices []string
	for _, entry := range entries {
		device, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok {
			continue
		}
		r, err := env.readRecord(device)
		if err == nil && r.Netns != netns && wayInto(r.Netns) != "" {
			continue
		}
		devices = append(devices, device)
	}
	return append(devices, env.withoutRecord()...), nil
}

// withoutRecord names the devices that are shaped, by their pins, and whose record is gone.
func (e Env) withoutRecord() (devices []string) {
	entries, err := os.ReadDir(e.BPFFS)
	if err != nil {
		return nil // no BPF file system, no pins
	}
	for _, entry := range entries {
		device := pinned(entry.Name())
		if _, err := netlink.LinkByName(device); err == nil && e.RecordLost(device) {
			devices = append(devices, device)
		}
	}
	return devices
}

// lockWait is how long a command waits for another one on the same device.
const lockWait = 10 * time.Second

// lock is a file lock that ends with the process, however that ends.
type lock struct{ file *os.File }

// lockDevice makes this process the only one that changes the device.
func (e Env) lockDevice(ctx context.Context, device string) (*lock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		l, err := tryLock(filepath.Join(e.RunDir, device+".lock"), unix.LOCK_EX)
		if !errors.Is(err, ErrBusy) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another command on %s: %w", device, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lockController makes this process the only one that runs the device's controller; the file then
// holds its process ID.
func (e Env) lockController(device string) (*lock, error) {
	l, err := tryLock(e.controllerLock(device), unix.LOCK_EX)
	for try := 0; errors.Is(err, ErrBusy) && try < 10; try++ {
		time.Sleep(20 * time.Millisecond) // whoever asks for ControllerPID has the lock for a moment
		l, err = tryLock(e.controllerLock(device), unix.LOCK_EX)
	}
	if err != nil {
		return nil, fmt.Errorf("run the controller of %s: %w", device, err)
	}
	if err := errors.Join(l.file.Truncate(0), writeString(l.file, strconv.Itoa(os.Getpid()))); err != nil {
		return nil, fmt.Errorf("run the controller of %s: %w", device, errors.Join(err, l.release()))
	}
	return l, nil
}

func writeString(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

func (e Env) controllerLock(device string) string {
	return filepath.Join(e.RunDir, device+".controller")
}

// ControllerPID is the process that runs the controller of a device, by the name it was attached under;
// 0 is none.
func (e Env) ControllerPID(device string) int {
	path := e.controllerLock(device)
	if _, err := os.Stat(path); err != nil {
		return 0
	}
	l, err := tryLock(path, unix.LOCK_SH)
	if err == nil {
		l.release()
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(text))
	return pid
}

// StoppedController is the process that runs the controller of a device, by the name it was attached
// under, if that process is stopped; else 0.
func (e Env) StoppedController(device string) int {
	pid := e.ControllerPID(device)
	if processState(pid) != api.ControllerStopped {
		return 0
	}
	return pid
}

// processState tells whether a process that runs a controller does anything.
func processState(pid int) api.ControllerState {
	if pid == 0 {
		return api.ControllerNone
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return api.ControllerRunning // it holds the lock, and we may not look
	}
	// The state follows the command, which is in parentheses and may contain some.
	_, state, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	if strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t") {
		return api.ControllerStopped
	}
	return api.ControllerRunning
}

// Recorded is the name under which a device is attached: the one that it had then, in pins, record and
// socket, though it may have been renamed since. It is the name itself where nothing is attached.
func (e Env) Recorded(device string) (string, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return device, nil // gone, and known by the name it had, if any
	}
	netns, err := Netns()
	if err != nil {
		return "", err
	}
	names, err := List(e)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		r, err := e.readRecord(name)
		if err != nil || r.Netns != netns {
			continue
		}
		switch {
		case r.Ifindex == link.Attrs().Index:
			return name, nil
		case name == device:
			// Gone, unless it has another name now.
			if renamed, err := netlink.LinkByIndex(r.Ifindex); err == nil {
				return "", fmt.Errorf("%s: %w: it has the name that %s had when that was attached; detach that first (cakectl detach %[3]s)", device, ErrNotAttached, renamed.Attrs().Name)
			}
		}
	}
	return device, nil
}

// find finds a device by its name, or by the one under which it is attached, though it has another now.
func (e Env) find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if !errors.As(err, &missing) {
		return link, err
	}
	r, recordErr := e.readRecord(name)
	netns, netnsErr := Netns()
	if recordErr != nil || netnsErr != nil || r.Netns != netns {
		return nil, err
	}
	if renamed, byIndex := netlink.LinkByIndex(r.Ifindex); byIndex == nil {
		return renamed, nil
	}
	return nil, err
}

// tryLock takes a lock, for itself (LOCK_EX) or with others (LOCK_SH).
func tryLock(path string, how int) (*lock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if err == nil {
		return &lock{file}, nil
	}
	file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrBusy
	}
	return nil, fmt.Errorf("take the lock %s: %w", path, err)
}

// release keeps the file: removing it would let two processes lock two files of the same name.
func (l *lock) release() error { return l.file.Close() }
