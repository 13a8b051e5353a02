// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/internal/vm/wire"
)

// hostPrograms are copied from the host into the image, with their libraries.
// The shell is the host's too: busybox's prefers its own ip and ping to those.
var hostPrograms = []struct {
	name     string
	remedy   string // the Debian package that has it
	optional bool
}{
	{name: "sh", remedy: "dash"},
	{name: "ip", remedy: "iproute2"},
	{name: "tc", remedy: "iproute2"},
	{name: "ss", remedy: "iproute2"},
	{name: "iperf3", remedy: "iperf3"},
	{name: "ping", optional: true},
	{name: "ethtool", optional: true},
	{name: "bpftool", optional: true},
}

// hostProgramDir is where the image has them.
const hostProgramDir = "/bin/"

// programDirs are searched beside PATH, which often lacks the sbin directories.
var programDirs = []string{"/usr/sbin", "/sbin", "/usr/local/sbin"}

// image is what the initramfs is made of.
type image struct {
	init    string // host path of the guest program, static
	modules []module
	steps   []wire.Step
	files   map[string]string // guest path to host path
}

// write packs the image.
func (i image) write(ctx context.Context, w io.Writer) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	archive := newCpioWriter(buffered)
	for _, add := range []func(*cpioWriter) error{
		i.addSkeleton,
		i.addJob,
		func(a *cpioWriter) error { return addHostPrograms(ctx, a) },
		func(a *cpioWriter) error { return addBusybox(ctx, a) },
		i.addFiles,
		(*cpioWriter).close,
	} {
		if err := add(archive); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

func (i image) addSkeleton(archive *cpioWriter) error {
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var", "/etc", "/bin", "/sbin", "/usr/bin", "/usr/sbin"} {
		if err := archive.dir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := archive.symlink("/var/run", "/run"); err != nil {
		return err
	}
	if err := archive.symlink("/var/tmp", "/tmp"); err != nil {
		return err
	}
	// In one order: with a seed, images that are alike make machines that run alike.
	for _, file := range []struct{ name, content string }{
		{"/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
		{"/etc/group", "root:x:0:\nnogroup:x:65534:\n"},
		{"/etc/hosts", "127.0.0.1 localhost vm\n::1 localhost\n"},
	} {
		if err := archive.bytes(file.name, 0o644, file.content); err != nil {
			return err
		}
	}
	return archive.copy("/init", i.init)
}

func (i image) addJob(archive *cpioWriter) error {
	job := wire.Job{Steps: i.steps}
	for _, module := range i.modules {
		path := "/lib/modules/" + module.name + ".ko"
		object, err := os.ReadFile(module.path)
		if err != nil {
			return fmt.Errorf("image: %w", err)
		}
		if object, err = withoutSignature(object); err != nil {
			return fmt.Errorf("image: kernel module %s: %w", module.name, err)
		}
		if err := archive.bytes(path, 0o644, string(object)); err != nil {
			return err
		}
		job.Modules = append(job.Modules, wire.Module{Path: path, Parameters: moduleParameters[module.name]})
	}
	text, err := json.Marshal(job)
	if err != nil {
		return fmt.Errorf("encode the job: %w", err)
	}
	return archive.bytes(wire.JobPath, 0o644, string(text))
}

func (i image) addFiles(archive *cpioWriter) error {
	for _, guestPath := range slices.Sorted(maps.Keys(i.files)) {
		if err := archive.copy(guestPath, i.files[guestPath]); err != nil {
			return err
		}
	}
	return nil
}

// findProgram looks a program up in PATH and in the directories of programs for root.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range programDirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

func addHostPrograms(ctx context.Context, archive *cpioWriter) error {
	for _, program := range hostPrograms {
		path, err := findProgram(program.name)
		if errors.Is(err, exec.ErrNotFound) && program.optional {
			continue
		}
		if err != nil {
			return fmt.Errorf("image: program %s (install package %s): %w", program.name, program.remedy, err)
		}
		if err := archive.copy(hostProgramDir+program.name, path); err != nil {
			return err
		}
		libraries, err := sharedLibraries(ctx, path)
		if err != nil {
			return err
		}
		for _, library := range libraries {
			if archive.has(library) {
				continue
			}
			if err := archive.copy(library, library); err != nil {
				return err
			}
		}
	}
	return nil
}

var lddPath = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x`)

// sharedLibraries returns the paths of the libraries and of the dynamic loader
// that a program needs.
func sharedLibraries(ctx context.Context, program string) ([]string, error) {
	static, err := isStatic(program)
	if err != nil || static {
		return nil, err
	}
	text, err := output(ctx, "", "ldd", program)
	if err != nil {
		return nil, err
	}
	return parseLdd(text)
}

func parseLdd(text string) ([]string, error) {
	if strings.Contains(text, "not found") {
		return nil, fmt.Errorf("a shared library is missing: %s", strings.TrimSpace(text))
	}
	var paths []string
	for _, match := range lddPath.FindAllStringSubmatch(text, -1) {
		paths = append(paths, match[1])
	}
	return paths, nil
}

// isStatic reports whether a program runs without a dynamic loader.
func isStatic(program string) (bool, error) {
	file, err := elf.Open(program)
	if err != nil {
		return false, fmt.Errorf("image: %s: %w", program, err)
	}
	defer file.Close()
	return !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// addBusybox adds busybox, and a link for each of its programs that the image
// does not have in earnest.
func addBusybox(ctx context.Context, archive *cpioWriter) error {
	const remedy = "install package busybox-static"
	path, err := findProgram("busybox")
	if err != nil {
		return fmt.Errorf("image: program busybox (%s): %w", remedy, err)
	}
	static, err := isStatic(path)
	if err != nil {
		return err
	}
	if !static {
		return fmt.Errorf("image: %s is not a static program (%s)", path, remedy)
	}
	if err := archive.copy("/bin/busybox", path); err != nil {
		return err
	}
	list, err := output(ctx, "", path, "--list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(list) {
		if archive.has("/bin/" + name) {
			continue
		}
		if err := archive.symlink("/bin/"+name, "busybox"); err != nil {
			return err
		}
	}
	return nil
}

// buildGuest compiles the guest program.
func buildGuest(ctx context.Context, moduleRoot, target string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", target, "./internal/vm/guest")
	cmd.Dir = moduleRoot
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the guest program: %w: %s", err, strings.TrimSpace(string(text)))
	}
	return nil
}
