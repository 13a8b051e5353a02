// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"time"
)

const (
	iperfPort    = 5201
	iperfPatient = 5 * time.Second
)

// IperfConfig is bulk TCP by iperf3.
type IperfConfig struct {
	Flows int
	// Duration is the measured time, Omit the time before it that iperf3 leaves out. Both are whole
	// seconds.
	Duration, Omit time.Duration
}

// Iperf is an iperf3 under way.
type Iperf struct {
	stop           context.CancelFunc
	server, client *exec.Cmd
	report, errors bytes.Buffer
}

// StartIperf starts a server and a client in named network namespaces.
func StartIperf(ctx context.Context, from, to string, address netip.Addr, c IperfConfig) (*Iperf, error) {
	if c.Duration%time.Second != 0 || c.Omit%time.Second != 0 {
		return nil, fmt.Errorf("start iperf3: it takes whole seconds, not %v after %v", c.Duration, c.Omit)
	}
	ctx, stop := context.WithCancel(ctx)
	i := &Iperf{stop: stop}
	port := strconv.Itoa(iperfPort)
	i.server = exec.CommandContext(ctx, "ip", "netns", "exec", to, "iperf3", "--server", "--one-off", "--port", port)
	if err := i.server.Start(); err != nil {
		stop()
		return nil, fmt.Errorf("start the iperf3 server: %w", err)
	}
	if err := waitListening(ctx, to, iperfPort); err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("start the iperf3 server: %w", err), i.server.Wait())
	}
	i.client = exec.CommandContext(ctx, "ip", "netns", "exec", from, "iperf3", "--client", address.String(), "--port", port, "--json",
		"--parallel", strconv.Itoa(c.Flows), "--time", strconv.Itoa(int(c.Duration/time.Second)), "--omit", strconv.Itoa(int(c.Omit/time.Second)))
	i.client.Stdout, i.client.Stderr = &i.report, &i.errors
	if err := i.client.Start(); err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("start iperf3: %w", err), i.server.Wait())
	}
	return i, nil
}

// waitListening waits until somebody listens on a TCP port in a network namespace.
func waitListening(ctx context.Context, namespace string, port int) error {
	for start := time.Now(); time.Since(start) < iperfPatient; time.Sleep(20 * time.Millisecond) {
		text, err := exec.CommandContext(ctx, "ip", "netns", "exec", namespace, "ss", "-Hltn", "sport", "=", strconv.Itoa(port)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("look for listeners: %w: %s", err, bytes.TrimSpace(text))
		}
		if len(bytes.TrimSpace(text)) > 0 {
			return nil
		}
	}
	return fmt.Errorf("nobody listens on port %d after %v", port, iperfPatient)
}

// IperfResult is what iperf3 reports.
type IperfResult struct {
	// Received is the payload, in bytes, that each flow delivered in the measured time.
	Received []uint64
	// Retransmits counts segments that were sent again.
	Retransmits uint64
}

// Wait waits for the end and returns the report.
func (i *Iperf) Wait() (IperfResult, error) {
	defer i.stop()
	var report struct {
		Error string `json:"error"`
		End   struct {
			Streams []struct {
				Receiver struct {
					Bytes uint64 `json:"bytes"`
				} `json:"receiver"`
			} `json:"streams"`
			SumSent struct {
				Retransmits uint64 `json:"retransmits"`
			} `json:"sum_sent"`
		} `json:"end"`
	}
	failed := i.client.Wait()
	// Its report says more than its exit status.
	err := json.Unmarshal(i.report.Bytes(), &report)
	if report.Error != "" {
		failed = errors.New(report.Error)
	}
	if failed != nil {
		i.stop() // the server may still wait for a client
		return IperfResult{}, errors.Join(fmt.Errorf("iperf3: %w: %s", failed, bytes.TrimSpace(i.errors.Bytes())), i.server.Wait())
	}
	if err != nil {
		return IperfResult{}, fmt.Errorf("read the report of iperf3: %w", err)
	}
	var r IperfResult
	for _, stream := range report.End.Streams {
		r.Received = append(r.Received, stream.Receiver.Bytes)
	}
	r.Retransmits = report.End.SumSent.Retransmits
	if len(r.Received) == 0 {
		return r, errors.New("read the report of iperf3: it has no flows")
	}
	if err := i.server.Wait(); err != nil {
		return r, fmt.Errorf("iperf3 server: %w", err)
	}
	return r, nil
}
