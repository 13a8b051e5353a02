// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// cpioWriter writes an archive in the "newc" format, the one that the kernel
// unpacks an initramfs from (Documentation/driver-api/early-userspace/
// buffer-format.rst). Parent directories are added as they are needed, and a
// path that exists already is an error.
type cpioWriter struct {
	w       io.Writer
	offset  int64
	inode   int
	present map[string]fs.FileMode
}

func newCpioWriter(w io.Writer) *cpioWriter {
	return &cpioWriter{w: w, present: map[string]fs.FileMode{"": fs.ModeDir}}
}

const (
	cpioDirectory = 0o040000
	cpioRegular   = 0o100000
	cpioSymlink   = 0o120000
)

func cleanName(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

func (c *cpioWriter) has(name string) bool {
	_, present := c.present[cleanName(name)]
	return present
}

func (c *cpioWriter) dir(name string, permissions fs.FileMode) error {
	name = cleanName(name)
	if kind, present := c.present[name]; present {
		if kind != fs.ModeDir {
			return fmt.Errorf("image: /%s is a file and a directory", name)
		}
		return nil
	}
	return c.entry(name, fs.ModeDir, cpioDirectory|uint32(permissions.Perm()), 0, nil)
}

func (c *cpioWriter) symlink(name, target string) error {
	return c.entry(name, fs.ModeSymlink, cpioSymlink|0o777, int64(len(target)), strings.NewReader(target))
}

func (c *cpioWriter) bytes(name string, permissions fs.FileMode, content string) error {
	return c.entry(name, 0, cpioRegular|uint32(permissions.Perm()), int64(len(content)), strings.NewReader(content))
}

// copy adds a file of the host, or a directory and everything in it, and
// follows symbolic links.
func (c *cpioWriter) copy(name, source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if !info.IsDir() {
		return c.copyFile(name, source, info)
	}
	if err := c.dir(name, info.Mode()); err != nil {
		return err
	}
	entries, err := os.ReadDir(source)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	for _, entry := range entries {
		if err := c.copy(path.Join(name, entry.Name()), filepath.Join(source, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (c *cpioWriter) copyFile(name, source string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("image: %s is neither a file nor a directory", source)
	}
	file, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer file.Close()
	return c.entry(name, 0, cpioRegular|uint32(info.Mode().Perm()), info.Size(), file)
}

func (c *cpioWriter) entry(name string, kind fs.FileMode, mode uint32, size int64, content io.Reader) error {
	name = cleanName(name)
	if c.has(name) {
		return fmt.Errorf("image: /%s added twice", name)
	}
	if parent := path.Dir(name); parent != "." {
		if err := c.dir(parent, 0o755); err != nil {
			return err
		}
	}
	c.present[name] = kind
	return c.record(name, mode, size, content)
}

func (c *cpioWriter) record(name string, mode uint32, size int64, content io.Reader) error {
	if size > 0xffffffff {
		return fmt.Errorf("image: /%s is too long for the archive format: %d bytes", name, size)
	}
	c.inode++
	links := 1
	if mode&cpioDirectory == cpioDirectory {
		links = 2
	}
	// magic, inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size, checksum
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	if err := c.write(strings.NewReader(header + name + "\x00")); err != nil {
		return err
	}
	if content != nil {
		before := c.offset
		if err := c.write(content); err != nil {
			return err
		}
		if written := c.offset - before; written != size+(4-size%4)%4 {
			return fmt.Errorf("image: /%s changed its size while it was read", name)
		}
	}
	return nil
}

// write copies content and pads it to a multiple of four bytes.
func (c *cpioWriter) write(content io.Reader) error {
	n, err := io.Copy(c.w, content)
	c.offset += n
	if err == nil && c.offset%4 != 0 {
		n, err = io.CopyN(c.w, strings.NewReader("\x00\x00\x00"), 4-c.offset%4)
		c.offset += n
	}
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// close writes the end of the archive.
func (c *cpioWriter) close() error {
	return c.record("TRAILER!!!", 0, 0, nil)
}
