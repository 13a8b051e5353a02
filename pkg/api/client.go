// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/config"
)

const (
	// answerTimeout is how long a client waits: attaching, which comes before the first answer, and
	// detaching take the kernel a moment for each of many queues.
	answerTimeout = 30 * time.Second
	// maxAnswerBytes has room for the status of 8 tins on 65,535 queues.
	maxAnswerBytes = 256 << 20
)

// Client asks the daemon of one device.
type Client struct {
	device string
	netns  uint64
	http   http.Client
}

// NewClient makes a client for the daemon of a device. Nothing is connected before the first request.
func NewClient(runDir, device string) *Client {
	path := socketPath(runDir, device)
	return &Client{device: device, http: http.Client{
		Timeout: answerTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var dialer net.Dialer
				return dialer.DialContext(ctx, "unix", path)
			},
		},
	}}
}

// From has the client tell the network namespace that it means: the daemon of another one, where a device of
// the same name is another device, answers with KindElsewhere. 0 means whichever the daemon is of.
func (c *Client) From(netns uint64) *Client {
	c.netns = netns
	return c
}

// netnsHeader names a client's network namespace.
const netnsHeader = "Cakectl-Netns"

// Status asks for the state of the device.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var status Status
	err := c.do(ctx, http.MethodGet, "/v1/status", nil, &status)
	return status, err
}

// Set changes the configuration.
func (c *Client) Set(ctx context.Context, change config.Change) (Changed, error) {
	var changed Changed
	err := c.do(ctx, http.MethodPatch, "/v1/config", change, &changed)
	return changed, err
}

// Detach restores the device and ends the daemon.
func (c *Client) Detach(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/detach", nil, &struct{}{})
}

// do sends a request and reads the answer. The error is [ErrNoDaemon], an [*Error] of the daemon's,
// or one of the connection.
func (c *Client) do(ctx context.Context, method, path string, body, answer any) error {
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask the daemon of %s: %w", c.device, err)
		}
		payload = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://cakectl"+path, payload)
	if err != nil {
		return fmt.Errorf("ask the daemon of %s: %w", c.device, err)
	}
	if c.netns != 0 {
		request.Header.Set(netnsHeader, strconv.FormatUint(c.netns, 10))
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("ask the daemon of %s: %w", c.device, unanswered(err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("read the answer of the daemon of %s: %w", c.device, unanswered(err))
	}
	if response.StatusCode != http.StatusOK {
		failure := &Error{}
		if err := json.Unmarshal(text, failure); err != nil || failure.Message == "" {
			return fmt.Errorf("the daemon of %s answers %s: is it of another version?", c.device, response.Status)
		}
		return failure
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("read the answer of the daemon of %s: %w", c.device, err)
	}
	return nil
}

// unanswered tells a daemon that is not there, or ended before it answered, from one that we may not
// ask or that does not answer in time. How a connection ends under a request has many names (EOF,
// reset, broken pipe, net/http's own), so it is what remains.
func unanswered(err error) error {
	var op *net.OpError
	dialled := !errors.As(err, &op) || op.Op != "dial"
	missing := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
	var waited net.Error
	switch {
	case errors.Is(err, context.Canceled), errors.As(err, &waited) && waited.Timeout():
		return err
	case dialled, missing:
		return fmt.Errorf("%w (%w)", ErrNoDaemon, err)
	default:
		return err
	}
}
