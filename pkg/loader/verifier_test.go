// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"bufio"
	"errors"
	commandline "flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

var verifierDir = commandline.String("verifier", "", "`directory` to write this kernel's verifier table to, instead of comparing with the committed one")

// verifierGrowth is by how much a figure may exceed the committed one.
const verifierGrowth = 1.10

// verifierFigures are how many instructions the verifier looked at, how many the program has, and the
// bytes of its machine code.
type verifierFigures [3]int

const (
	verifierLicense = "# SPDX-License-Identifier: BSD-2-Clause"
	verifierHeader  = "# kernel program         verified instructions machine-code-bytes"
)

func (f verifierFigures) line(kernel version, program string) string {
	return fmt.Sprintf("%8v %-14s %10d %12d %18d", kernel, program, f[0], f[1], f[2])
}

// TestLoadVerifierTable shows what the verifier says of each program, and fails when one has grown by
// more than a tenth since the table in testdata/verifier was written (make verifier-table).
func TestLoadVerifierTable(t *testing.T) {
	kernel := kernelVersion(t)
	table := map[string]verifierFigures{}
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadDataPath, loadQueueCheck} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(table, verify(t, spec))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n%s\n", verifierLicense, verifierHeader)
	for _, program := range slices.Sorted(maps.Keys(table)) {
		fmt.Fprintln(&text, table[program].line(kernel, program))
	}
	t.Logf("\n%s", text.String())
	if *verifierDir != "" {
		if err := os.WriteFile(filepath.Join(*verifierDir, kernel.String()), []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	compareVerified(t, kernel, table)
}

// verify loads the programs of a specification and makes sure that the verifier has no more to say than
// its statistics.
func verify(t *testing.T, spec *ebpf.CollectionSpec) map[string]verifierFigures {
	t.Helper()
	if _, isDataPath := spec.Variables[dataPathVarTinCount]; isDataPath {
		if err := size(spec, Options{Queues: 32, Tins: MaxTins, Flows: DefaultFlows, LinkHeaderBytes: 14}); err != nil {
			t.Fatal(err)
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer collection.Close()
	table := map[string]verifierFigures{}
	for name, program := range collection.Programs {
		statistics := regexp.MustCompile(`^(verification time|stack depth|subprog|processed|insns processed|$)`)
		for line := range strings.Lines(program.VerifierLog) {
			if !statistics.MatchString(strings.TrimSpace(line)) {
				t.Errorf("%s: the verifier says: %s", name, line)
			}
		}
		table[name] = figuresOf(t, program)
	}
	return table
}

func figuresOf(t *testing.T, program *ebpf.Program) verifierFigures {
	t.Helper()
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	verified, known := info.VerifiedInstructions()
	if !known {
		t.Fatal("this kernel does not tell how many instructions it verified")
	}
	bytes, err := info.TranslatedSize()
	if err != nil {
		t.Fatal(err)
	}
	code, err := info.JitedSize()
	if err != nil {
		t.Fatal(err)
	}
	const instructionBytes = 8
	return verifierFigures{int(verified), bytes / instructionBytes, int(code)}
}

// version is a kernel's, without what distributions and stable releases add.
type version struct{ major, minor int }

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

func kernelVersion(t *testing.T) version {
	t.Helper()
	code, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	return version{int(code >> 16), int(code >> 8 & 0xff)}
}

// compareVerified compares with the committed table of this kernel or, where there is none, of the next
// older one.
func compareVerified(t *testing.T, kernel version, table map[string]verifierFigures) {
	t.Helper()
	const dir = "testdata/verifier"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var best version
	for _, entry := range entries {
		var v version
		if _, err := fmt.Sscanf(entry.Name(), "%d.%d", &v.major, &v.minor); err != nil {
			t.Fatalf("%s/%s is not named after a kernel: %v", dir, entry.Name(), err)
		}
		if older(best, v) && !older(kernel, v) {
			best = v
		}
	}
	committed := readVerified(t, filepath.Join(dir, best.String()))
	for program, figures := range table {
		before, known := committed[program]
		if !known {
			t.Errorf("%s is not in the table of Linux %v: make verifier-table, and commit it", program, best)
			continue
		}
		for i, now := range figures {
			if float64(now) > verifierGrowth*float64(before[i]) {
				t.Errorf("%s has grown by more than %.0f %% since the table of Linux %v was written. If it has to: make verifier-table, and commit it\nwas %s\nis  %s",
					program, 100*(verifierGrowth-1), best, before.line(best, program), figures.line(kernel, program))
				break
			}
		}
	}
}

func older(a, b version) bool {
	return a.major < b.major || a.major == b.major && a.minor < b.minor
}

func readVerified(t *testing.T, path string) map[string]verifierFigures {
	t.Helper()
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no table for this kernel or an older one: make verifier-table, and commit it")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	table := map[string]verifierFigures{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var kernel, program string
		var f verifierFigures
		if _, err := fmt.Sscan(lines.Text(), &kernel, &program, &f[0], &f[1], &f[2]); err != nil {
			t.Fatalf("%s: %q: %v", path, lines.Text(), err)
		}
		table[program] = f
	}
	return table
}
