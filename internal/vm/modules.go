// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// wantedModules are loaded at boot, with what they depend on. A kernel may have
// any of them built in.
var wantedModules = []string{
	// Transport to the host, and the NIC of the virtio variant.
	"virtio_pci", "virtio_console", "virtio_net",
	// Devices that tests and experiments make.
	"veth", "ifb", "dummy", "tun", "8021q", "vxlan", "geneve", "pktgen",
	// Queueing disciplines: ours, the peers' and the usual defaults.
	"sch_fq", "sch_fq_codel", "sch_cake", "sch_htb", "sch_tbf", "sch_netem",
	"sch_mqprio", "sch_prio", "sch_sfq", "sch_ingress",
	// Classifiers and actions.
	"cls_bpf", "cls_matchall", "cls_u32", "cls_flower", "cls_basic", "cls_fw",
	"act_bpf", "act_mirred", "act_gact", "act_skbedit", "act_police", "act_vlan",
	// Congestion control, and socket statistics for ss.
	"tcp_bbr", "tcp_dctcp", "tcp_diag", "udp_diag",
}

// moduleParameters keep modules from making devices that nobody asked for.
var moduleParameters = map[string]string{
	"ifb":   "numifbs=0",
	"dummy": "numdummies=0",
}

// moduleTree is the module directory of a kernel. Debian's packages have no
// modules.dep (depmod writes that at installation), so that dependencies are
// read from the modules themselves.
type moduleTree struct {
	files   map[string]string // module name to path
	builtin map[string]bool   // module name
	cache   string            // directory for decompressed modules
}

func openModuleTree(dir, cache string) (*moduleTree, error) {
	tree := &moduleTree{files: map[string]string{}, builtin: map[string]bool{}, cache: cache}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, isModule := moduleName(entry.Name()); isModule && !entry.IsDir() {
			tree.files[name] = path
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list kernel modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("list built-in modules: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		if name, isModule := moduleName(filepath.Base(strings.TrimSpace(line))); isModule {
			tree.builtin[name] = true
		}
	}
	return tree, nil
}

// moduleName turns a module's file name into its name: the kernel spells names
// with underscores, whatever the file is called.
func moduleName(file string) (name string, isModule bool) {
	for _, suffix := range []string{".ko", ".ko.xz", ".ko.zst", ".ko.gz"} {
		if base, found := strings.CutSuffix(file, suffix); found {
			return strings.ReplaceAll(base, "-", "_"), true
		}
	}
	return "", false
}

// module is a decompressed module.
type module struct {
	name, path string
}

// loadOrder returns the modules to load for the wanted ones, each after those
// that it depends on.
func (t *moduleTree) loadOrder(ctx context.Context, wanted []string) ([]module, error) {
	var order []module
	seen := map[string]bool{}
	var visit func(name, neededBy string) error
	visit = func(name, neededBy string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if seen[name] || t.builtin[name] {
			return nil
		}
		seen[name] = true
		if t.files[name] == "" {
			return fmt.Errorf("kernel module %s, needed by %s, is neither built in nor in the package", name, neededBy)
		}
		path, info, err := t.open(ctx, name)
		if err != nil {
			return fmt.Errorf("kernel module %s: %w", name, err)
		}
		for _, dependency := range info.depends {
			if err := visit(dependency, name); err != nil {
				return err
			}
		}
		for _, dependency := range info.softPre {
			// A soft dependency may be missing: it speeds things up or adds a feature.
			if t.files[strings.ReplaceAll(dependency, "-", "_")] == "" {
				continue
			}
			if err := visit(dependency, name); err != nil {
				return err
			}
		}
		order = append(order, module{name, path})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name, "the image"); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// open returns the path of a decompressed module, and what it says about itself.
func (t *moduleTree) open(ctx context.Context, name string) (string, moduleInfo, error) {
	path, err := t.decompress(ctx, name)
	if err != nil {
		return "", moduleInfo{}, err
	}
	object, err := os.ReadFile(path)
	if err != nil {
		return "", moduleInfo{}, err
	}
	info, err := readModuleInfo(object)
	return path, info, err
}

// decompress makes a plain copy of a compressed module in the cache, once.
func (t *moduleTree) decompress(ctx context.Context, name string) (string, error) {
	path := t.files[name]
	tool := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(path)]
	if tool == "" {
		return path, nil
	}
	plain := filepath.Join(t.cache, name+".ko")
	if _, err := os.Stat(plain); err == nil {
		return plain, nil
	}
	content, err := output(ctx, "", tool, "-dc", path)
	if err != nil {
		return "", err
	}
	return plain, writeAtomically(plain, []byte(content))
}

// writeAtomically makes a file that appears whole or not at all.
func writeAtomically(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// signatureMarker ends a signed module (include/linux/module_signature.h).
const signatureMarker = "~Module signature appended~\n"

// withoutSignature cuts the signature off a module, if it has one: an emulated processor takes seconds to
// verify those of all modules. Before the marker are 12 bytes about the signature, the last four of which are
// its length, most significant first, and before those it is.
func withoutSignature(object []byte) ([]byte, error) {
	signed, found := bytes.CutSuffix(object, []byte(signatureMarker))
	if !found {
		return object, nil
	}
	end := len(signed) - 12
	if end < 0 {
		return nil, errors.New("a signature of less than 12 bytes")
	}
	length := binary.BigEndian.Uint32(signed[end+8:])
	if int64(length) > int64(end) {
		return nil, fmt.Errorf("a signature of %d bytes in a module of %d", length, end)
	}
	return signed[:end-int(length)], nil
}

// moduleInfo is what a module says about the modules that it needs.
type moduleInfo struct {
	depends []string // names, from depends=
	softPre []string // names, from softdep=pre:
}

func readModuleInfo(object []byte) (moduleInfo, error) {
	file, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return moduleInfo{}, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return moduleInfo{}, errors.New("no section .modinfo")
	}
	text, err := section.Data()
	if err != nil {
		return moduleInfo{}, fmt.Errorf("read section .modinfo: %w", err)
	}
	return parseModuleInfo(string(text)), nil
}

// parseModuleInfo reads the content of a .modinfo section: key=value strings, each ended by NUL.
func parseModuleInfo(text string) moduleInfo {
	var info moduleInfo
	for entry := range strings.SplitSeq(text, "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			info.depends = append(info.depends, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			pre := false
			for _, word := range strings.Fields(value) {
				switch {
				case strings.HasSuffix(word, ":"):
					pre = word == "pre:"
				case pre:
					info.softPre = append(info.softPre, word)
				}
			}
		}
	}
	return info
}
