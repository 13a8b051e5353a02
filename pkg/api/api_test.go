// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const device = "eth0"

// fakeDevice answers with what it is given.
type fakeDevice struct {
	status  Status
	changed Changed
	err     error

	changes  []config.Change
	detached bool
	// during, if set, runs while a change is being made.
	during func(context.Context)
}

func (d *fakeDevice) Status(context.Context) (Status, error) { return d.status, d.err }

func (d *fakeDevice) Set(ctx context.Context, change config.Change) (Changed, error) {
	if d.during != nil {
		d.during(ctx)
	}
	d.changes = append(d.changes, change)
	return d.changed, d.err
}

func (d *fakeDevice) Detach(context.Context) error {
	d.detached = d.err == nil
	return d.err
}

var errNotAttached = errors.New("not attached")

func classify(err error) Kind {
	switch {
	case errors.Is(err, config.ErrInvalid):
		return KindInvalid
	case errors.Is(err, errNotAttached):
		return KindNotAttached
	default:
		return KindFailed
	}
}

// socketDir is a directory whose name leaves room for a socket's.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mustListen(t *testing.T, dir string) *Listener {
	t.Helper()
	l, err := Listen(dir, device)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve serves d until the test ends, or stop is called.
func serve(t *testing.T, dir string, d Device) (stop func()) {
	t.Helper()
	l := mustListen(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- l.Serve(ctx, Server{Device: d, Classify: classify, Log: slog.New(slog.DiscardHandler)})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func exampleStatus() Status {
	changed := time.Date(2026, 11, 30, 20, 0, 0, 1, time.UTC)
	return Status{
		Device: device, Enforcing: true, Attach: "tcx",
		Bandwidth: BitsPerSec(200 * rates.Mbit), Diffserv: "diffserv4", Split: "flows", RootQdisc: "mq",
		Framing: framing.Framing{OverIP: true, OverheadBytes: 34, Cells: framing.PTM},
		Classes: Classes{Map: []tins.Rule{{Field: tins.DSCP, From: 46, To: 46, Tin: "voice"}}, FwmarkMask: 0xff, Wash: true},
		Queues:  Queues{Total: 8, Active: 1, Counters: []QueueCounters{{Bytes: 1500, Packets: 1}}},
		Tins: []Tin{{
			Name: "best_effort", Rate: BitsPerSec(200 * rates.Mbit), Ceil: BitsPerSec(rates.Unlimited),
			DroppedPackets: map[string]uint64{"horizon": 1}, DroppedBytes: map[string]uint64{"horizon": 1500},
			Sojourn: Sojourn{P50: 0.001, P99: 0.01, Sum: 1, Buckets: []SojournBucket{
				{LE: 0.001, Cumulative: 1}, {LE: Seconds(math.Inf(1)), Cumulative: 2},
			}},
			Queues: []TinQueue{{Queue: 3, EffectiveRate: BitsPerSec(200 * rates.Mbit), Active: true, ActiveFlows: 4}},
		}},
		Bypassed:  map[string]uint64{"not_ip": 1},
		Foresight: Foresight{Matched: map[string]uint64{"hash": 99}, Mismatched: map[string]uint64{"xps": 1}},
		Controller: Controller{Events: 1, RecomputesByTrigger: map[string]uint64{"active": 1}, LastChange: &changed,
			State: ControllerStopped, UnansweredEvents: 3, UnansweredSeconds: 2.5, Stale: true},
		Drift:  &Drift{Policy: "repair", Detected: 2, Repaired: 1, Last: "root: is pfifo 1:, want mq ca4e:", LastDetected: &changed},
		Daemon: 4711,
	}
}

func TestClientGetsWhatTheDeviceAnswers(t *testing.T) {
	dir := socketDir(t)
	bandwidth, ceil := rates.Absolute(100*rates.Mbit), rates.Absolute(10*rates.Mbit)
	split, rtt := rates.SplitEqual, 20*time.Millisecond
	spec := config.New(device, bandwidth)
	d := &fakeDevice{status: exampleStatus(), changed: Changed{RateWrites: 32, Spec: spec}}
	serve(t, dir, d)
	client := NewClient(dir, device)

	status, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.status, status); diff != "" {
		t.Errorf("status (-sent +received):\n%s", diff)
	}
	change := config.Change{
		Bandwidth: &bandwidth, Split: &split, RTT: &rtt,
		Tins: []config.TinOverride{{Name: "bulk", RateDefault: true, Ceil: &ceil}},
	}
	changed, err := client.Set(t.Context(), change)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.changed, changed); diff != "" {
		t.Errorf("changed (-sent +received):\n%s", diff)
	}
	if diff := cmp.Diff([]config.Change{change}, d.changes); diff != "" {
		t.Errorf("change (-sent +received):\n%s", diff)
	}
	if err := client.Detach(t.Context()); err != nil || !d.detached {
		t.Errorf("detach: %v, detached: %t", err, d.detached)
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	_, invalid := config.ParseSplit("half")
	for _, test := range []struct {
		err  error
		kind Kind
	}{
		{fmt.Errorf("set eth0: %w", invalid), KindInvalid},
		{fmt.Errorf("eth0: %w", errNotAttached), KindNotAttached},
		{errors.New("eth0: operation not permitted"), KindFailed},
		{&Error{KindBusy, "eth0 is being changed"}, KindBusy},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			dir := socketDir(t)
			serve(t, dir, &fakeDevice{err: test.err})
			client := NewClient(dir, device)
			_, statusErr := client.Status(t.Context())
			_, setErr := client.Set(t.Context(), config.Change{})
			detachErr := client.Detach(t.Context())
			for _, err := range []error{statusErr, setErr, detachErr} {
				var failure *Error
				if !errors.As(err, &failure) {
					t.Fatalf("got %v, want an *Error", err)
				}
				if want := (Error{test.kind, test.err.Error()}); *failure != want {
					t.Errorf("got %+v, want %+v", *failure, want)
				}
				if got, want := errors.Is(err, config.ErrInvalid), test.kind == KindInvalid; got != want {
					t.Errorf("is config.ErrInvalid: %t, want %t", got, want)
				}
				if errors.Is(err, ErrNoDaemon) {
					t.Error("an answer counts as no daemon")
				}
			}
		})
	}
}

func TestServerRefusesBadRequests(t *testing.T) {
	dir := socketDir(t)
	d := &fakeDevice{}
	serve(t, dir, d)
	client := NewClient(dir, device)
	for _, test := range []struct {
		name, method, path, body string
		code                     int
		want                     string
	}{
		{"unknown setting", "PATCH", "/v1/config", `{"bandwith":"1gbit"}`, 400, `unknown field \"bandwith\"`},
		{"bad rate", "PATCH", "/v1/config", `{"bandwidth":"1mbps"}`, 400, "ambiguous"},
		{"no JSON", "PATCH", "/v1/config", `bandwidth=1gbit`, 400, "read the request"},
		{"two values", "PATCH", "/v1/config", `{}{}`, 400, "more than one JSON value"},
		{"empty", "PATCH", "/v1/config", ``, 400, "EOF"},
		{"too large", "PATCH", "/v1/config", strings.Repeat(" ", maxBodyBytes+1) + "{}", 400, "too large"},
		{"wrong method", "POST", "/v1/config", `{}`, 405, ""},
		{"wrong path", "GET", "/v2/status", ``, 404, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), test.method, "http://cakectl"+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != test.code || !strings.Contains(string(text), test.want) {
				t.Errorf("got %d %s, want %d with %q", response.StatusCode, text, test.code, test.want)
			}
		})
	}
	if len(d.changes) > 0 {
		t.Errorf("the device was changed: %+v", d.changes)
	}
}

// A daemon that dies, or stops, between the connection and the answer.
func TestNoAnswerIsNoDaemon(t *testing.T) {
	dir := socketDir(t)
	client := NewClient(dir, device)
	if _, err := client.Status(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("without a socket: got %v, want ErrNoDaemon", err)
	}
	l := mustListen(t, dir)
	go func() {
		connection, err := l.socket.Accept()
		if err == nil {
			connection.Close()
		}
	}()
	if _, err := client.Status(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("without an answer: got %v, want ErrNoDaemon", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A daemon that is there, but may not be asked or does not answer, is not to be worked around.
func TestSilenceIsNotNoDaemon(t *testing.T) {
	dir := socketDir(t)
	l := mustListen(t, dir) // and never serves
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		connection, err := l.socket.Accept()
		cancel()
		if err == nil {
			defer connection.Close()
			_, _ = io.Copy(io.Discard, connection)
		}
	}()
	if _, err := NewClient(dir, device).Status(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoDaemon) {
		t.Errorf("cancelled: got %v", err)
	}
	client := NewClient(dir, device)
	client.http.Timeout = time.Millisecond
	if _, err := client.Status(t.Context()); err == nil || errors.Is(err, ErrNoDaemon) {
		t.Errorf("too late: got %v", err)
	}
	client = NewClient(filepath.Join(dir, device+".sock"), device) // the socket is no directory
	if _, err := client.Status(t.Context()); !errors.Is(err, unix.ENOTDIR) || errors.Is(err, ErrNoDaemon) {
		t.Errorf("not reachable: got %v", err)
	}
}

func TestForeignServerIsReported(t *testing.T) {
	dir := socketDir(t)
	socket, err := net.Listen("unix", socketPath(dir, device))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(socket) }()
	defer func() { server.Close(); <-done }()
	_, err = NewClient(dir, device).Status(t.Context())
	if err == nil || errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want the 404", err)
	}
}

func TestSocketIsPrivateAndGoesAway(t *testing.T) {
	dir := filepath.Join(socketDir(t), "run")
	stop := serve(t, dir, &fakeDevice{})
	info, err := os.Stat(socketPath(dir, device))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Type() != fs.ModeSocket || info.Mode().Perm() != socketMode {
		t.Errorf("mode %v, want a socket with %o", info.Mode(), socketMode)
	}
	stop()
	wantEmpty(t, dir)
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestListenRefusesASecondDaemon(t *testing.T) {
	dir := socketDir(t)
	l := mustListen(t, dir)
	if _, err := Listen(dir, device); !errors.Is(err, ErrServed) {
		t.Errorf("second: got %v, want ErrServed", err)
	}
	if err := RemoveStale(dir, device); err != nil {
		t.Errorf("RemoveStale beside a daemon: %v", err)
	}
	if _, err := os.Stat(socketPath(dir, device)); err != nil {
		t.Errorf("RemoveStale took the socket of a daemon: %v", err)
	}
	other, err := Listen(dir, "eth1")
	if err != nil {
		t.Fatalf("another device: %v", err)
	}
	for _, l := range []*Listener{l, other} {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	mustListen(t, dir).Close()
	wantEmpty(t, dir)
}

// leaveStale leaves what kill -9 leaves: a socket that nobody listens on, and an unlocked file.
func leaveStale(t *testing.T, dir string) {
	t.Helper()
	l := mustListen(t, dir)
	if err := errors.Join(l.socket.Close(), l.lock.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socketPath(dir, device)); err != nil {
		t.Fatal(err)
	}
}

func TestStaleSocket(t *testing.T) {
	dir := socketDir(t)
	leaveStale(t, dir)
	if _, err := NewClient(dir, device).Status(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("client: got %v, want ErrNoDaemon", err)
	}
	stop := serve(t, dir, &fakeDevice{status: exampleStatus()})
	if _, err := NewClient(dir, device).Status(t.Context()); err != nil {
		t.Errorf("client of the new daemon: %v", err)
	}
	stop()
	leaveStale(t, dir)
	if err := RemoveStale(dir, device); err != nil {
		t.Error(err)
	}
	wantEmpty(t, dir)
}

// However many claim a device at the same moment, over a stale socket, and give it up again: never
// two have it.
func TestListenIsExclusive(t *testing.T) {
	dir := socketDir(t)
	leaveStale(t, dir)
	var holders, claims atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				l, err := Listen(dir, device)
				if errors.Is(err, ErrServed) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if holders.Add(1) > 1 {
					t.Error("two daemons for one device")
				}
				claims.Add(1)
				holders.Add(-1)
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if claims.Load() == 0 {
		t.Error("nobody got it")
	}
	wantEmpty(t, dir)
}

func TestListenNamesATooLongPath(t *testing.T) {
	dir := filepath.Join(socketDir(t), strings.Repeat("x", maxSocketPath))
	if _, err := Listen(dir, device); err == nil || !strings.Contains(err.Error(), "bytes more than") {
		t.Errorf("got %v", err)
	}
	wantEmpty(t, dir)
}

// A daemon that ends answers first what it has begun.
func TestServeEndsAfterTheAnswers(t *testing.T) {
	dir := socketDir(t)
	begun, release := make(chan struct{}), make(chan struct{})
	d := &fakeDevice{changed: Changed{RateWrites: 7}, during: func(context.Context) {
		close(begun)
		<-release
	}}
	stop := serve(t, dir, d)
	answered := make(chan error, 1)
	go func() {
		changed, err := NewClient(dir, device).Set(context.Background(), config.Change{})
		if err == nil && changed.RateWrites != 7 {
			err = fmt.Errorf("got %+v", changed)
		}
		answered <- err
	}()
	<-begun
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	<-stopped
}

// A client that goes away does not leave a change half done.
func TestChangeOutlivesItsClient(t *testing.T) {
	dir := socketDir(t)
	ctx, leave := context.WithCancel(t.Context())
	gone, made := make(chan struct{}), make(chan bool, 1)
	serve(t, dir, &fakeDevice{during: func(ctx context.Context) {
		leave()
		<-gone
		made <- ctx.Done() != nil
	}})
	if _, err := NewClient(dir, device).Set(ctx, config.Change{}); !errors.Is(err, context.Canceled) {
		t.Errorf("client: %v", err)
	}
	close(gone)
	if <-made {
		t.Error("the change can be cancelled")
	}
}
