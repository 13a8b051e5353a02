// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ShortConfig is TCP connections that come and go.
type ShortConfig struct {
	// PerSecond connections are opened, and each carries so many bytes and ends.
	PerSecond int
	Bytes     int
	DSCP      uint8
}

// Short is short TCP connections under way.
type Short struct {
	cancel   context.CancelFunc
	listener net.Listener
	running  sync.WaitGroup

	mu   sync.Mutex
	done int
	errs []error
}

// StartShort opens connections until Stop, whether earlier ones have ended or not.
func StartShort(ctx context.Context, from, to Netns, address netip.Addr, c ShortConfig) (*Short, error) {
	s := &Short{}
	err := to.Do(func() (err error) {
		s.listener, err = (&net.ListenConfig{KeepAlive: -1}).Listen(ctx, "tcp4", netip.AddrPortFrom(address, 0).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start short connections: %w", err)
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.running.Go(s.accept)
	s.running.Go(func() { s.open(ctx, from, c) })
	return s, nil
}

func (s *Short) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // by Stop
		}
		s.running.Go(func() {
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		})
	}
}

func (s *Short) open(ctx context.Context, from Netns, c ShortConfig) {
	data := make([]byte, c.Bytes)
	dialer := net.Dialer{KeepAlive: -1, Control: setTOS(c.DSCP)}
	ticker := time.NewTicker(time.Second / time.Duration(c.PerSecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var conn net.Conn
		err := from.Do(func() (err error) {
			conn, err = dialer.DialContext(ctx, "tcp4", s.listener.Addr().String())
			return err
		})
		if err != nil {
			s.end(ctx, err)
			continue
		}
		s.running.Go(func() {
			_, err := conn.Write(data)
			s.end(ctx, errors.Join(err, conn.Close()))
		})
	}
}

func (s *Short) end(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.done++
	case ctx.Err() == nil:
		s.errs = append(s.errs, err)
	}
}

// Done is how many connections have been sent.
func (s *Short) Done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// Stop opens no more, and returns what went wrong until then.
func (s *Short) Stop() error {
	s.cancel()
	err := s.listener.Close()
	s.running.Wait()
	if len(s.errs) > 0 {
		err = errors.Join(err, fmt.Errorf("%d short connections failed, the first with: %w", len(s.errs), s.errs[0]))
	}
	return err
}
