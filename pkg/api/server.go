// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cakectl/cakectl/pkg/config"
)

// Limits on what a client may ask of the daemon's time and memory.
const (
	requestTimeout  = 10 * time.Second // until a request has arrived whole
	shutdownTimeout = 10 * time.Second // for requests that are being answered when the daemon ends
	maxHeaderBytes  = 16 << 10
	maxBodyBytes    = 1 << 20 // the specs of some hundred devices
)

// Changed says what a change came to.
type Changed struct {
	// RateWrites is the number of effective rates that had to be written.
	RateWrites int `json:"rate_writes"`
	// Spec is what the device is configured to now.
	Spec config.Spec `json:"spec"`
}

// Device is what a daemon serves. Its methods may be called at the same time.
type Device interface {
	Status(ctx context.Context) (Status, error)
	Set(ctx context.Context, change config.Change) (Changed, error)
	Detach(ctx context.Context) error
}

// Server answers requests for a device, or for the daemon of many: one of the two is set.
type Server struct {
	Device Device
	Host   Host
	// Classify gives the kind of the device's errors.
	Classify func(error) Kind
	// Netns is the network namespace of the devices; 0 answers clients of all.
	Netns uint64
	Log   *slog.Logger
}

// Serve answers requests until ctx ends, and returns when those under way are answered. The caller
// still has to Close the listener.
func (l *Listener) Serve(ctx context.Context, s Server) error {
	server := &http.Server{
		Handler:           s.sameNetns(l.device, s.handler()),
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		IdleTimeout:       requestTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l.socket) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s on %s: %w", l.device, l.path, err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ending); err != nil {
		server.Close()
	}
	<-done
	return nil
}

func (s Server) handler() http.Handler {
	mux := http.NewServeMux()
	if s.Host != nil {
		s.serveHost(mux)
		return mux
	}
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		status, err := s.Device.Status(r.Context())
		s.answer(w, r, status, err)
	})
	// A change that has begun is brought to its end, even if the client goes away.
	mux.HandleFunc("PATCH /v1/config", func(w http.ResponseWriter, r *http.Request) {
		change, err := read[config.Change](w, r)
		if err != nil {
			s.answer(w, r, nil, err)
			return
		}
		changed, err := s.Device.Set(context.WithoutCancel(r.Context()), change)
		s.answer(w, r, changed, err)
	})
	mux.HandleFunc("POST /v1/detach", func(w http.ResponseWriter, r *http.Request) {
		err := s.Device.Detach(context.WithoutCancel(r.Context()))
		s.answer(w, r, struct{}{}, err)
	})
	return mux
}

// sameNetns answers clients that mean the devices of another network namespace.
func (s Server) sameNetns(device string, next http.Handler) http.Handler {
	what := device + " is served by process %d in another network namespace (%d)"
	if device == AllDevices {
		what = "process %d serves the devices of another network namespace (%d)"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		theirs := r.Header.Get(netnsHeader)
		if theirs == "" || s.Netns == 0 || theirs == strconv.FormatUint(s.Netns, 10) {
			next.ServeHTTP(w, r)
			return
		}
		s.answer(w, r, nil, &Error{KindElsewhere, fmt.Sprintf(
			what+": run this there (nsenter --net=/proc/%[1]d/ns/net cakectl ...), or give this namespace directories of its own (--run-dir, --bpffs)",
			os.Getpid(), s.Netns)})
	})
}

// read reads the body of a request strictly: a setting that this version does not know must not be
// lost silently.
func read[T any](w http.ResponseWriter, r *http.Request) (T, error) {
	var value T
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&value)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one JSON value")
		}
	}
	if err != nil {
		return value, &Error{KindInvalid, fmt.Sprintf("read the request: %v", err)}
	}
	return value, nil
}

// answer writes a value, or the error.
func (s Server) answer(w http.ResponseWriter, r *http.Request, value any, err error) {
	var body []byte
	if err == nil {
		body, err = json.Marshal(value)
	}
	code := http.StatusOK
	if err != nil {
		var failure *Error
		if !errors.As(err, &failure) {
			failure = &Error{s.Classify(err), err.Error()}
		}
		code = failure.Kind.httpStatus()
		// What a client got wrong it is told, and is no trouble of the daemon's.
		level := slog.LevelDebug
		if failure.Kind == KindFailed {
			level = slog.LevelWarn
		}
		s.Log.Log(r.Context(), level, "request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		if body, err = json.Marshal(failure); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if _, err := w.Write(append(body, '\n')); err != nil {
		s.Log.Debug("the client is gone", "err", err)
	}
}
