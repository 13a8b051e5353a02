// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/shaper"
)

// shortDir is a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cakectl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func wantContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("lacks %q:\n%s", part, text)
		}
	}
}

func wantCalls(t *testing.T, h *fakeHost, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, h.called()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// wantLeft checks which files are in the run directory.
func (s *shell) wantLeft(want ...string) {
	s.t.Helper()
	entries, err := os.ReadDir(s.runDir)
	if err != nil {
		s.t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestAttachServesUntilASignal(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := newShell(t)
	daemon := s.attach("--bandwidth", "200mbit", "--tin", "bulk=ceil:10%")
	wantContains(t, daemon.stdout.String(),
		"lo: 200mbit, diffserv4, split by flows, 4 transmit queues by tcx under mq\n",
		"guaranteed best_effort the rest, bulk 12.5mbit (at most 20mbit), video 100mbit, voice 50mbit\n",
		"lo: metrics on http://127.0.0.1:", "lo: Ctrl-C detaches it\n")
	s.wantLeft("lo.sock", "lo.sock.lock")

	stdout, _ := s.run(exitDone, "status", "lo")
	wantContains(t, stdout, "lo: 200mbit", "enforcing: yes", "controller: process 4711")
	stdout, _ = s.run(exitDone, "set", "lo", "--bandwidth", "100mbit", "--split", "equal")
	wantContains(t, stdout, "lo: 100mbit, diffserv4, split by equal", "bulk 6.25mbit (at most 10mbit)", "effective rates written: 3\n")
	_, stderr := s.run(exitInvalid, "set", "lo", "--tin", "voice=rate:101mbit")
	wantContains(t, stderr, "cakectl: tin voice: rate 101mbit is above the bandwidth of 100mbit\n")
	if got := s.host.attached["lo"].Bandwidth; got != rates.Absolute(100*rates.Mbit) {
		t.Errorf("bandwidth %s", got)
	}

	wantContains(t, scrape(t, daemon),
		`cakectl_bandwidth_limit_bytes_per_second{device="lo"} 1.25e+07`,
		`cakectl_rate_changes_total{device="lo",result="ok",source="cli"} 1`,
		`cakectl_rate_changes_total{device="lo",result="ok",source="api"} 1`,
		`cakectl_rate_changes_total{device="lo",result="invalid",source="api"} 1`,
		`cakectl_controller_reaction_seconds_count{device="lo"} 1`,
		"cakectl_build_info{goversion=")

	daemon.signal(interrupted{syscall.SIGINT})
	s.ends(daemon, exitDone)
	wantContains(t, daemon.stdout.String(), "lo: detached, and as it was found\n")
	wantCalls(t, s.host, "attach lo adopt=false", "set lo", "detach lo")
	s.wantLeft()
	s.run(exitNotAttached, "status", "lo")
}

// scrape gets the metrics from where the daemon said.
func scrape(t *testing.T, daemon *command) string {
	t.Helper()
	match := regexp.MustCompile(`metrics on (http://\S+)`).FindStringSubmatch(daemon.stdout.String())
	if match == nil {
		t.Fatalf("no address:\n%s", &daemon.stdout)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(match[1])
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestKeepLeavesTheShapingOn(t *testing.T) {
	s := newShell(t)
	daemon := s.attach("--bandwidth", "200mbit", "--keep")
	daemon.signal(interrupted{syscall.SIGTERM})
	s.ends(daemon, exitDone)
	wantContains(t, daemon.stdout.String(), "shaping goes on without a process; cakectl attach lo adopts it, cakectl detach lo ends it\n")
	s.wantLeft()

	stdout, _ := s.run(exitDone, "set", "lo", "--bandwidth", "1gbit")
	wantContains(t, stdout, "lo: 1gbit")
	stdout, _ = s.run(exitDone, "detach", "lo")
	wantContains(t, stdout, "lo: detached, and as it was found\n")
	wantCalls(t, s.host, "attach lo adopt=false", "set lo", "detach lo")
	s.run(exitNotAttached, "detach", "lo")
}

func TestAttachAdopts(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("lo", rates.Gbit)
	ceil := rates.Absolute(10 * rates.Mbit)
	spec := s.host.attached["lo"]
	spec.Split = rates.SplitEqual
	spec.Tins = []config.TinOverride{{Name: "bulk", Ceil: &ceil}, {Name: "voice", Rate: &ceil}}
	s.host.attached["lo"] = spec

	daemon := s.attach("--tin", "bulk=ceil:none", "--rtt", "lan")
	wantContains(t, daemon.stdout.String(), "lo: adopted; its clocks and counters go on\n", "lo: 1gbit")
	want := spec
	want.Tins, want.RTT = spec.Tins[1:], 1e6
	if diff := cmp.Diff(want, s.host.attached["lo"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	daemon.signal(interrupted{syscall.SIGINT})
	s.ends(daemon, exitDone)
	wantCalls(t, s.host, "attach lo adopt=true", "detach lo")
}

func TestAttachRefusesOtherTinsOnAnAttachedDevice(t *testing.T) {
	const want = "cakectl: attach lo: it is attached with diffserv4, and tins cannot change under traffic: detach it first\n"
	s := newShell(t)
	s.host.attachSpec("lo", rates.Gbit)
	_, stderr := s.run(exitInvalid, "attach", "lo", "--diffserv", "diffserv8")
	wantContains(t, stderr, want)
	s.attach()
	_, stderr = s.run(exitInvalid, "attach", "lo", "--diffserv", "diffserv8")
	wantContains(t, stderr, want)
	wantCalls(t, s.host, "attach lo adopt=true")
}

func TestSecondAttachHandsOverTheChange(t *testing.T) {
	s := newShell(t)
	daemon := s.attach("--bandwidth", "200mbit")
	stdout, _ := s.run(exitDone, "attach", "lo", "--bandwidth", "300mbit", "--dry-run")
	wantContains(t, stdout, "would be handed the change")
	stdout, stderr := s.run(exitDone, "attach", "lo", "--bandwidth", "300mbit", "--keep")
	wantContains(t, stdout, "lo: is attached and served by process 4711; handing it the change\n",
		"lo: --keep of that process stays as it is\n", "lo: 300mbit, diffserv4")
	if stderr != "" {
		t.Errorf("stderr: %s", stderr)
	}
	daemon.signal(interrupted{syscall.SIGINT})
	s.ends(daemon, exitDone)
	wantCalls(t, s.host, "attach lo adopt=false", "set lo", "detach lo")
}

func TestDetachEndsTheDaemon(t *testing.T) {
	s := newShell(t)
	daemon := s.attach("--bandwidth", "200mbit", "--keep")
	stdout, _ := s.run(exitDone, "detach", "lo")
	wantContains(t, stdout, "lo: detached, and as it was found\n")
	s.ends(daemon, exitDone)
	wantContains(t, daemon.stdout.String(), "lo: another cakectl detached it\n")
	wantCalls(t, s.host, "attach lo adopt=false", "detach lo")
	s.wantLeft()
}

func TestDetachThatFails(t *testing.T) {
	s := newShell(t)
	daemon := s.attach("--bandwidth", "200mbit")
	s.host.detachErr = errors.New("detach lo: device or resource busy")
	_, stderr := s.run(exitFailed, "detach", "lo")
	wantContains(t, stderr, "cakectl: detach lo: device or resource busy\n")
	s.ends(daemon, exitFailed)
	wantContains(t, daemon.stderr.String(), "cakectl: detach lo: device or resource busy\n")

	s.host.detachErr = nil
	s.run(exitDone, "detach", "lo")
	wantCalls(t, s.host, "attach lo adopt=false", "detach lo", "detach lo")
	s.wantLeft()
}

func TestManyAtOnce(t *testing.T) {
	s := newShell(t)
	var wg sync.WaitGroup
	attaches := make([]*command, 4)
	for i := range attaches {
		attaches[i] = s.start("attach", "lo", "--bandwidth", fmt.Sprintf("%dmbit", 100+i), "--metrics", "none")
	}
	// All but the one that is the daemon end by themselves.
	ended := make(chan *command, len(attaches))
	for _, c := range attaches {
		wg.Go(func() {
			if exit := <-c.exit; exit != exitDone {
				t.Errorf("exit status %d: %s", exit, &c.stderr)
			}
			ended <- c
		})
	}
	for range len(attaches) - 1 {
		<-ended
	}
	s.run(exitDone, "detach", "lo")
	wg.Wait()
	calls := s.host.called()
	if calls[0] != "attach lo adopt=false" || calls[len(calls)-1] != "detach lo" || len(calls) != len(attaches)+1 {
		t.Errorf("calls %q, want one attach, three sets, one detach", calls)
	}
	s.wantLeft()
}

// What a daemon that was killed leaves behind.
func TestStaleSocket(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("lo", rates.Gbit)
	if err := os.MkdirAll(s.runDir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(s.runDir, "lo.sock")})
	if err != nil {
		t.Fatal(err)
	}
	socket.SetUnlinkOnClose(false)
	socket.Close()

	s.run(exitDone, "status", "lo")
	s.run(exitDone, "set", "lo", "--bandwidth", "2gbit")
	daemon := s.attach()
	wantContains(t, daemon.stdout.String(), "lo: 2gbit")
	s.run(exitDone, "detach", "lo")
	s.ends(daemon, exitDone)
	wantCalls(t, s.host, "set lo", "attach lo adopt=true", "detach lo")
	s.wantLeft()
}

// A process that cannot be asked would undo what is changed past it.
func TestSocketThatIsGone(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("lo", rates.Gbit)
	s.host.controller = 4711
	for _, verb := range [][]string{{"set", "lo", "--bandwidth", "2gbit"}, {"attach", "lo", "--metrics", "none"}, {"detach", "lo"}} {
		_, stderr := s.run(exitFailed, verb...)
		wantContains(t, stderr, "cakectl: "+verb[0]+" lo: process 4711 serves it and cannot be asked, since its socket in "+s.runDir+" is gone: end it (kill 4711), and start it again\n")
	}
	wantCalls(t, s.host)
	wantContains(t, s.stdout(exitDone, "status", "lo"), "lo: 1gbit")
}

func TestAttachThatFails(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		exit int
	}{
		{"kernel", errors.New("attach lo: put mq and fq in place:\nno such file or directory"), exitFailed},
		{"configuration", fmt.Errorf("bandwidth: %w", config.ErrInvalid), exitInvalid},
		{"busy", fmt.Errorf("wait for another command on lo: %w", shaper.ErrBusy), exitFailed},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShell(t)
			s.host.attachErr = test.err
			_, stderr := s.run(test.exit, "attach", "lo", "--bandwidth", "1gbit", "--metrics", "127.0.0.1:0")
			want := "cakectl: " + strings.ReplaceAll(test.err.Error(), "\n", "; ") + "\n"
			if diff := cmp.Diff(want, stderr); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			s.wantLeft()
		})
	}
}

// The daemon's waiting clients find nobody when its attach fails, and go on without it.
func TestClientsOfAnAttachThatFails(t *testing.T) {
	s := newShell(t)
	begun, release := make(chan struct{}), make(chan struct{})
	s.host.attaching = func(context.Context) error {
		close(begun)
		<-release
		return errors.New("no buffer space available")
	}
	daemon := s.start("attach", "lo", "--bandwidth", "1gbit", "--metrics", "none")
	<-begun
	status := s.start("status", "lo")
	close(release)
	s.ends(daemon, exitFailed)
	s.ends(status, exitNotAttached)
}

func TestSignalWhileAttaching(t *testing.T) {
	s := newShell(t)
	begun := make(chan struct{})
	s.host.attaching = func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	daemon := s.start("attach", "lo", "--bandwidth", "1gbit", "--metrics", "none")
	<-begun
	daemon.signal(interrupted{syscall.SIGTERM})
	s.ends(daemon, 128+int(syscall.SIGTERM))
	wantContains(t, daemon.stderr.String(), "cakectl: interrupted by SIGTERM: attach lo: put mq and fq in place: context canceled\n")
	s.wantLeft()
}

func TestMetricsAddressThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := newShell(t)
	_, stderr := s.run(exitFailed, "attach", "lo", "--bandwidth", "1gbit", "--metrics", taken.Addr().String())
	wantContains(t, stderr, "cakectl: attach lo: serve metrics on "+taken.Addr().String()+
		": address already in use: another process has that address; give another one, or none, as --metrics ADDR\n")
	wantCalls(t, s.host)
	s.wantLeft()
}

func TestControllerThatFails(t *testing.T) {
	s := newShell(t)
	s.host.runErr = errors.New("read the events of lo: bad file descriptor")
	_, stderr := s.run(exitFailed, "attach", "lo", "--bandwidth", "1gbit", "--metrics", "none")
	wantContains(t, stderr, "cakectl: read the events of lo: bad file descriptor\n")
	wantCalls(t, s.host, "attach lo adopt=false", "detach lo")
	s.wantLeft()
}

func TestStatusExits(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("lo", rates.Gbit)
	s.host.attachSpec("eth9", rates.Mbit)
	s.host.notEnforcing = "the root qdisc is pfifo"

	stdout, stderr := s.run(exitNotEnforcing, "status", "lo")
	wantContains(t, stdout, "enforcing: NO: the root qdisc is pfifo\n")
	if stderr != "" {
		t.Errorf("stderr: %s", stderr)
	}
	stdout, _ = s.run(exitNotEnforcing, "status", "lo", "-o", "json")
	var one api.Status
	if err := json.Unmarshal([]byte(stdout), &one); err != nil || one.Device != "lo" || one.Reason != "the root qdisc is pfifo" {
		t.Errorf("%v: %s", err, stdout)
	}
	stdout, _ = s.run(exitNotEnforcing, "status")
	wantContains(t, stdout, "DEVICE", "eth9", "lo", "NO: the root qdisc is pfifo")

	s.host.notEnforcing = ""
	stdout, _ = s.run(exitDone, "status", "--output", "json")
	var all []api.Status
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) != 2 || all[0].Device != "eth9" {
		t.Errorf("%v: %s", err, stdout)
	}
	s.host.statusErr = errors.New("read the counters of tin 0: bad file descriptor")
	stdout, stderr = s.run(exitFailed, "status")
	if stdout != "" {
		t.Errorf("stdout: %s", stdout)
	}
	wantContains(t, stderr, "cakectl: read the counters of tin 0: bad file descriptor; read the counters of tin 0: bad file descriptor\n")
}

func TestKinds(t *testing.T) {
	for _, test := range []struct {
		err  error
		kind api.Kind
	}{
		{fmt.Errorf("set: %w", invalid("no")), api.KindInvalid},
		{fmt.Errorf("x: %w", config.ErrInvalid), api.KindInvalid},
		{fmt.Errorf("lo: %w", shaper.ErrNotAttached), api.KindNotAttached},
		{fmt.Errorf("lo: %w", shaper.ErrBusy), api.KindBusy},
		{fmt.Errorf("lo: %w", &api.Error{Kind: api.KindNotAttached}), api.KindNotAttached},
		{errors.New("operation not permitted"), api.KindFailed},
	} {
		if got := daemon.KindOf(test.err); got != test.kind {
			t.Errorf("%v: %s, want %s", test.err, got, test.kind)
		}
	}
}

// The address that nobody asked for is worth no attach.
func TestDefaultMetricsAddressThatIsTaken(t *testing.T) {
	if taken, err := net.Listen("tcp", config.DefaultMetricsAddress); err == nil { // else somebody has it already
		defer taken.Close()
	}
	s := newShell(t)
	daemon := s.start("attach", "lo", "--bandwidth", "1gbit")
	for !strings.Contains(daemon.stdout.String(), "Ctrl-C") {
		time.Sleep(time.Millisecond)
	}
	wantContains(t, daemon.stderr.String(), "cakectl: lo: no metrics: another process has "+config.DefaultMetricsAddress+"; --metrics ADDR serves them elsewhere")
	if strings.Contains(daemon.stdout.String(), "metrics on") {
		t.Errorf("stdout: %s", &daemon.stdout)
	}
	daemon.signal(interrupted{syscall.SIGINT})
	s.ends(daemon, exitDone)
	wantCalls(t, s.host, "attach lo adopt=false", "detach lo")
}

func TestDryRunOfAServedDevice(t *testing.T) {
	s := newShell(t)
	daemon := s.attach("--bandwidth", "200mbit")
	stdout, _ := s.run(exitDone, "attach", "lo", "--bandwidth", "300mbit", "--tin", "voice=ceil:10%", "--dry-run")
	wantContains(t, stdout, "which would be handed the change: bandwidth 200mbit -> 300mbit, voice ceil none -> 10%\n")
	stdout, _ = s.run(exitDone, "attach", "lo", "--dry-run")
	wantContains(t, stdout, "nothing would change\n")
	_, stderr := s.run(exitInvalid, "attach", "lo", "--tin", "voice=rate:300mbit", "--dry-run")
	wantContains(t, stderr, "cakectl: attach lo: tin voice: rate 300mbit is above the bandwidth of 200mbit\n")
	_, stderr = s.run(exitInvalid, "attach", "lo", "--isolation", "hosts", "--dry-run")
	wantContains(t, stderr, "that cannot change under traffic: detach lo first; under traffic it changes among flows, dual-srchost, dual-dsthost, triple\n")
	daemon.signal(interrupted{syscall.SIGINT})
	s.ends(daemon, exitDone)
	wantCalls(t, s.host, "attach lo adopt=false", "detach lo")
}
