// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cakectl/cakectl/internal/vm/wire"
)

// unpack has busybox's cpio, not our own code, say what is in an archive.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("busybox", "cpio", "-idm", "--quiet")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(archive)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, text)
	}
	return dir
}

func TestCpio(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	writeFile(t, filepath.Join(source, "tree/a"), "A")
	writeFile(t, filepath.Join(source, "tree/sub/b"), "BBBBB")
	if err := os.Chmod(filepath.Join(source, "tree/a"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(source, "tree/link")); err != nil {
		t.Fatal(err)
	}

	var buffer bytes.Buffer
	archive := newCpioWriter(&buffer)
	for _, err := range []error{
		archive.dir("/empty", 0o700),
		archive.bytes("/deep/er/file", 0o644, "four"),
		archive.symlink("/deep/link", "er/file"),
		archive.copy("/copied", filepath.Join(source, "tree")),
		archive.dir("/deep", 0o755), // there already: no error
		archive.close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if buffer.Len()%4 != 0 {
		t.Errorf("%d bytes are not a multiple of 4: a second archive could not follow", buffer.Len())
	}
	root := unpack(t, buffer.Bytes())
	for name, want := range map[string]string{"deep/er/file": "four", "deep/link": "four", "copied/a": "A", "copied/link": "A", "copied/sub/b": "BBBBB"} {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]fs.FileMode{"empty": fs.ModeDir | 0o700, "copied/a": 0o750, "deep/link": fs.ModeSymlink | 0o777} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

func TestCpioRefuses(t *testing.T) {
	t.Parallel()
	archive := newCpioWriter(&bytes.Buffer{})
	if err := archive.bytes("/a", 0o644, ""); err != nil {
		t.Fatal(err)
	}
	if archive.bytes("a", 0o644, "") == nil {
		t.Error("the same path was added twice")
	}
	if archive.bytes("/a/b", 0o644, "") == nil {
		t.Error("a file became a directory")
	}
	if archive.copy("/c", filepath.Join(t.TempDir(), "missing")) == nil {
		t.Error("a missing file was copied")
	}
	if archive.copy("/null", "/dev/null") == nil {
		t.Error("a device was copied")
	}
}

func TestImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "init"), "init")
	writeFile(t, filepath.Join(dir, "ifb.ko"), "module")
	in := image{
		init:    filepath.Join(dir, "init"),
		modules: []module{{"ifb", filepath.Join(dir, "ifb.ko")}},
		steps:   []Step{{Command: []string{"true"}, Env: []string{"A=b"}}},
		files:   map[string]string{"/some/where": filepath.Join(dir, "ifb.ko"), "/here": filepath.Join(dir, "init")},
	}
	var buffer bytes.Buffer
	if err := in.write(t.Context(), &buffer); err != nil {
		t.Fatal(err)
	}
	// Machines with one seed run alike only from images that are alike to the byte.
	for range 3 {
		var again bytes.Buffer
		if err := in.write(t.Context(), &again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.Bytes(), buffer.Bytes()) {
			t.Fatal("the same image was packed in another way")
		}
	}
	root := unpack(t, buffer.Bytes())
	text, err := os.ReadFile(filepath.Join(root, wire.JobPath))
	if err != nil {
		t.Fatal(err)
	}
	var job wire.Job
	if err := json.Unmarshal(text, &job); err != nil {
		t.Fatal(err)
	}
	if len(job.Modules) != 1 || job.Modules[0].Parameters == "" || len(job.Steps) != 1 || job.Steps[0].Env[0] != "A=b" {
		t.Errorf("the job became %+v", job)
	}
	for _, name := range []string{"init", "some/where", job.Modules[0].Path} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	// The proof that programs came with their libraries: they run with nothing else.
	for _, command := range [][]string{{"ip", "-V"}, {"tc", "-V"}, {"iperf3", "--version"}, {"ls", "/"}, {"sh", "-c", "true"}} {
		args := append([]string{root}, command...)
		if text, err := exec.Command("chroot", args...).CombinedOutput(); err != nil {
			t.Errorf("%q in the image: %v: %s", command, err, text)
		}
	}
}

func TestParseLdd(t *testing.T) {
	t.Parallel()
	const text = `	linux-vdso.so.1 (0x00007ffd5a5f2000)
	libbpf.so.1 => /lib/x86_64-linux-gnu/libbpf.so.1 (0x00007f0000000000)
	/lib64/ld-linux-x86-64.so.2 (0x00007f0000000000)
`
	got, err := parseLdd(text)
	if want := []string{"/lib/x86_64-linux-gnu/libbpf.so.1", "/lib64/ld-linux-x86-64.so.2"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := parseLdd("\tlibx.so => not found\n"); err == nil {
		t.Error("a missing library is no error")
	}
}
