// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// features is what every lane must have; it ends at the first that is missing.
const features = `set -e
ip link add veth0 numtxqueues 4 type veth peer name veth1 numrxqueues 4
ip link add ifb0 type ifb
ip link add dummy0 type dummy
for qdisc in fq fq_codel "cake bandwidth 10mbit" htb "tbf rate 1mbit burst 10k latency 10ms" "netem delay 1ms" mq; do
	tc qdisc replace dev veth0 root $qdisc
	tc qdisc show dev veth0 root | grep -q "^qdisc ${qdisc%% *} "
done
tc qdisc add dev veth0 clsact
test -s /sys/kernel/btf/vmlinux
grep -q tsc /sys/devices/system/clocksource/clocksource0/current_clocksource
mount | grep -q "on /sys/fs/bpf type bpf"
mount | grep -q "on /sys/fs/cgroup type cgroup2"
mount | grep -q "on /sys/kernel/tracing type tracefs"
case $(uname -r) in
[7-9].*) grep -q cake_mq /proc/kallsyms ;;
esac
`

// virtio looks at the two NICs: queues, the kernel's own queueing, and a path between them.
const virtio = `set -e
test $(ls -d /sys/class/net/eth0/queues/tx-* | wc -l) = 2
ip netns add far
ip link set eth1 netns far
ip addr add 192.0.2.1/24 dev eth0
ip -n far addr add 192.0.2.2/24 dev eth1
ip link set eth0 up
ip -n far link set eth1 up
tc qdisc show dev eth0 | grep -q "^qdisc mq 0: root"
test $(tc qdisc show dev eth0 | grep -c "fq_codel 0: parent :") = 2
ping -q -c 1 -w 20 192.0.2.2
`

func shell(script string) Step {
	return Step{Command: []string{"sh", "-c", script}}
}

func TestRun(t *testing.T) {
	for _, lane := range Lanes() {
		t.Run(lane, func(t *testing.T) {
			watchLeaks(t)
			var stdout bytes.Buffer
			outDir := filepath.Join(t.TempDir(), "out")
			data := filepath.Join(t.TempDir(), "data")
			writeFile(t, data, "from the host")
			var seen []int
			result, err := Run(t.Context(), Config{
				Lane: lane, SMP: 2, VirtioQueues: 2, Stdout: &stdout, OutDir: outDir,
				Files:    map[string]string{"/data/file": data},
				StepDone: func(step StepResult) { seen = append(seen, step.Index) },
				Steps: []Step{
					shell("uname -r"),
					shell(features),
					shell(virtio),
					{Command: []string{"sh", "-c", "echo $PWD $X $CAKECTL_VM $(cat file) >&2; exit 7"}, Dir: "/data", Env: []string{"X=y"}},
					shell("kill -TERM $$"),
					{Command: []string{"/no/such/program"}},
					shell("mkdir -p /out/sub && echo result >/out/sub/file && mkfifo /out/pipe && ln -s /etc/passwd /out/link"),
					shell("sleep 1000 & setsid sleep 1000 & exit 0"),
					shell("ps | grep '[s]leep 1000'"),
				},
			})
			if err != nil {
				t.Fatalf("%v\noutput:\n%s", err, stdout.String())
			}
			t.Logf("booted %s in %v", result.KernelRelease, result.Boot.Round(time.Millisecond))
			if first, _, _ := strings.Cut(stdout.String(), "\n"); first != result.KernelRelease || first == hostRelease(t) {
				t.Errorf("uname -r printed %q, the result says %q, the host runs %q", first, result.KernelRelease, hostRelease(t))
			}
			if lane != "newest" && !strings.HasPrefix(result.KernelRelease, lane+".") {
				t.Errorf("lane %s booted %s", lane, result.KernelRelease)
			}
			if !strings.Contains(stdout.String(), "/data y 1 from the host\n") {
				t.Errorf("directory, environment, file: output %q", stdout.String())
			}
			codes := []int{0, 0, 0, 7, 128 + int(unix.SIGTERM), 127, 0, 0, 1}
			for i, want := range codes {
				if got := result.Steps[i]; got.ExitCode != want || got.Index != i {
					t.Errorf("step %d ended as %+v, want exit code %d", i, got, want)
				}
			}
			if result.Steps[4].Signal != "SIGTERM" || result.Steps[5].Error == "" {
				t.Errorf("signal: %+v, missing program: %+v", result.Steps[4], result.Steps[5])
			}
			if result.ExitCode() != 7 {
				t.Errorf("exit code %d of the whole, want that of the first failure", result.ExitCode())
			}
			if len(seen) != len(codes) {
				t.Errorf("%d steps were announced, want %d", len(seen), len(codes))
			}
			if got, err := os.ReadFile(filepath.Join(outDir, "sub", "file")); err != nil || string(got) != "result\n" {
				t.Errorf("file in /out: %q, %v", got, err)
			}
			if t.Failed() {
				t.Logf("output:\n%s", stdout.String())
			}
		})
	}
}

func TestRunReportsHang(t *testing.T) {
	watchLeaks(t)
	_, err := Run(t.Context(), Config{Lane: "newest", Steps: []Step{shell("sleep 1000")}, Timeout: 3 * time.Second})
	var failure *GuestError
	if !errors.As(err, &failure) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a hang gave %v", err)
	}
}

func TestRunReportsCrash(t *testing.T) {
	watchLeaks(t)
	_, err := Run(t.Context(), Config{Lane: "newest", Steps: []Step{shell("true"), shell("echo c >/proc/sysrq-trigger; sleep 1000")}})
	var failure *GuestError
	if !errors.As(err, &failure) {
		t.Fatalf("a crash gave %v", err)
	}
	if !strings.Contains(failure.Reason, "panic") || failure.Step != 1 || !strings.Contains(failure.Console, "sysrq_handle_crash") {
		t.Errorf("got %v", err)
	}
}

func TestRunStopsWithContext(t *testing.T) {
	watchLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Interrupt it in the midst of a step, by the step's own word.
	stdout := writerFunc(func([]byte) { cancel() })
	_, err := Run(ctx, Config{Lane: "newest", VirtioQueues: 1, Steps: []Step{shell("echo running; sleep 1000")}, Stdout: stdout})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	for name, config := range map[string]Config{
		"lane":    {Lane: "2.6", Steps: []Step{shell("true")}},
		"no step": {Lane: "newest"},
		"size":    {Lane: "newest", SMP: -1, Steps: []Step{shell("true")}},
		"file":    {Lane: "newest", Steps: []Step{shell("true")}, Files: map[string]string{"/x": "/no/such/file"}},
	} {
		if _, err := Run(t.Context(), config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestExtractStaysInside(t *testing.T) {
	for _, name := range []string{"../outside", "/../../outside", "a/../../outside"} {
		dir := t.TempDir()
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		if err := w.WriteHeader(&tar.Header{Name: name, Size: 1, Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := extract(&archive, filepath.Join(dir, "out")); err == nil {
			t.Errorf("%s was accepted", name)
		}
		if _, err := os.Stat(filepath.Join(dir, "outside")); err == nil {
			t.Errorf("%s was written outside", name)
		}
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(text []byte) (int, error) {
	f(text)
	return len(text), nil
}

func hostRelease(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(name.Release[:])
}

// watchLeaks fails the test if it leaves a temporary file, a process that was
// started with one, or a thread in another network namespace.
func watchLeaks(t *testing.T) {
	t.Helper()
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	home := namespaces(t)
	t.Cleanup(func() {
		entries, err := os.ReadDir(temporary)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			t.Errorf("left behind: %s", entry.Name())
		}
		commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range commands {
			// A process that ends meanwhile is no leak.
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(temporary)) {
				t.Errorf("left running: %s: %q", path, text)
			}
		}
		for namespace := range namespaces(t) {
			if !home[namespace] {
				t.Errorf("a thread is left in the network namespace %s", namespace)
			}
		}
	})
}

// namespaces returns the network namespaces that the threads of this process are in.
func namespaces(t *testing.T) map[string]bool {
	t.Helper()
	links, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil {
			found[name] = true
		}
	}
	return found
}
