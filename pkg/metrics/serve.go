// SPDX-License-Identifier: BSD-2-Clause

package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	requestTimeout  = 10 * time.Second
	maxHeaderBytes  = 16 << 10
	maxScrapes      = 4 // at the same time; each reads every map
	shutdownTimeout = time.Second
)

// Serve serves the collector's metrics under /metrics until ctx ends. It closes the listener.
func (c *Collector) Serve(ctx context.Context, listener net.Listener) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		listener.Close()
		return fmt.Errorf("serve the metrics: %w", err)
	}
	errorLog := slog.NewLogLogger(c.log.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            errorLog,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	}))
	server := &http.Server{
		Handler:           mux,
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		WriteTimeout:      scrapeTimeout + requestTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errorLog,
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve the metrics on %s: %w", listener.Addr(), err)
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
