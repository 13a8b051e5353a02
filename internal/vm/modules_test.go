// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseModuleInfo(t *testing.T) {
	t.Parallel()
	text := "license=GPL\x00depends=a,b-c\x00softdep=pre: d e post: f\x00alias=x=y\x00\x00"
	want := moduleInfo{depends: []string{"a", "b-c"}, softPre: []string{"d", "e"}}
	if got := parseModuleInfo(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := parseModuleInfo("depends=\x00"); len(got.depends) != 0 {
		t.Errorf("no dependencies became %q", got.depends)
	}
}

func TestWithoutSignature(t *testing.T) {
	t.Parallel()
	about := func(length byte) string { return "12345678\x00\x00\x00" + string(length) + signatureMarker }
	for object, want := range map[string]string{
		"":                              "",
		"module":                        "module",
		"module" + "sig" + about(3):     "module",
		"sig" + about(3):                "",
		signatureMarker + "module":      signatureMarker + "module",
		"module" + about(0) + "\n":      "module" + about(0) + "\n",
		"module" + about(0) + about(39): "module" + about(0)[:1],
	} {
		got, err := withoutSignature([]byte(object))
		if err != nil || string(got) != want {
			t.Errorf("%q became %q (%v), want %q", object, got, err, want)
		}
	}
	for _, object := range []string{signatureMarker, "short" + signatureMarker, "sig" + about(4)} {
		if got, err := withoutSignature([]byte(object)); err == nil {
			t.Errorf("%q became %q", object, got)
		}
	}
}

func TestModuleName(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"sch_fq.ko": "sch_fq", "virtio-rng.ko.xz": "virtio_rng", "a.ko.zst": "a", "modules.order": "", "x.kohl": "",
	} {
		if got, isModule := moduleName(file); got != want || isModule != (want != "") {
			t.Errorf("moduleName(%q) = %q, %t", file, got, isModule)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeModule(t, dir, "net/top.ko.xz", "depends=middle-one,bottom\x00softdep=pre: soft absent\x00")
	writeModule(t, dir, "net/middle-one.ko", "depends=bottom,built-in\x00")
	writeModule(t, dir, "lib/bottom.ko.zst", "depends=\x00")
	writeModule(t, dir, "lib/soft.ko", "depends=bottom\x00")
	writeModule(t, dir, "lib/broken.ko", "depends=nowhere\x00")
	writeFile(t, filepath.Join(dir, "modules.builtin"), "kernel/lib/built-in.ko\nkernel/lib/other.ko\n")
	tree, err := openModuleTree(dir, filepath.Join(dir, "cache"))
	if err != nil {
		t.Fatal(err)
	}

	// Twice: the second time, the decompressed modules come from the cache.
	for range 2 {
		order, err := tree.loadOrder(t.Context(), []string{"other", "top", "bottom"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, module := range order {
			names = append(names, module.name)
			content, err := os.ReadFile(module.path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
				t.Errorf("%s is not a plain object", module.path)
			}
		}
		if want := []string{"bottom", "middle_one", "soft", "top"}; !slices.Equal(names, want) {
			t.Errorf("order %q, want %q", names, want)
		}
	}
	for _, name := range []string{"missing", "broken"} {
		if _, err := tree.loadOrder(t.Context(), []string{name}); err == nil || !strings.Contains(err.Error(), "neither built in") {
			t.Errorf("module %s: error %v", name, err)
		}
	}
}

// writeModule makes a kernel module with nothing but a .modinfo section.
func writeModule(t *testing.T, dir, name, info string) {
	t.Helper()
	const names = "\x00.modinfo\x00.shstrtab\x00"
	const headerSize, sectionSize = 64, 64
	infoAt := uint64(headerSize)
	namesAt := infoAt + uint64(len(info))
	sectionsAt := namesAt + uint64(len(names))
	header := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: sectionsAt, Ehsize: headerSize, Shentsize: sectionSize, Shnum: 3, Shstrndx: 2,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: infoAt, Size: uint64(len(info))},
		{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))},
	}
	var object bytes.Buffer
	for _, part := range []any{header, []byte(info), []byte(names), sections} {
		if err := binary.Write(&object, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "kernel", name)
	plain := strings.TrimSuffix(strings.TrimSuffix(path, ".xz"), ".zst")
	writeFile(t, plain, object.String())
	if tool := map[string]string{".xz": "xz", ".zst": "zstd"}[filepath.Ext(path)]; tool != "" {
		if text, err := exec.Command(tool, "-q", plain).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", tool, err, text)
		}
		if err := os.RemoveAll(plain); err != nil {
			t.Fatal(err)
		}
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
