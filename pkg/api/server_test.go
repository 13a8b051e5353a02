// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cakectl/cakectl/pkg/config"
)

// What a client got wrong is no warning in the log of the daemon, and what the kernel refused is.
func TestServerWarnsOfFailuresOnly(t *testing.T) {
	for err, warns := range map[error]bool{
		fmt.Errorf("%w: bandwidth", config.ErrInvalid): false,
		errNotAttached:                           false,
		errors.New("device or resource is busy"): true,
	} {
		var log strings.Builder
		s := Server{Classify: classify, Log: slog.New(slog.NewTextHandler(&log, nil))}
		s.answer(httptest.NewRecorder(), httptest.NewRequest("PATCH", "/v1/config", nil), nil, err)
		if got := strings.Contains(log.String(), "level=WARN"); got != warns || got != (log.Len() > 0) {
			t.Errorf("%v: logged %q, and should warn: %t", err, &log, warns)
		}
	}
}
