// SPDX-License-Identifier: BSD-2-Clause

package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/metrics"
)

type noDevices struct{}

func (noDevices) Statuses(context.Context) ([]api.Status, error) { return nil, nil }

// labelsOf are the labels of each metric that cakectl serves.
func labelsOf() map[string][]string {
	descs := make(chan *prometheus.Desc, 1000)
	metrics.New(noDevices{}, metrics.Build{}, slog.New(slog.DiscardHandler)).Describe(descs)
	close(descs)
	labels := map[string][]string{}
	desc := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	for d := range descs {
		match := desc.FindStringSubmatch(d.String())
		labels[match[1]] = strings.Split(match[2], ",")
	}
	return labels
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every metric of the alerts and of the dashboard is one that cakectl serves, with the labels that are asked for.
func TestMetricsExist(t *testing.T) {
	known := labelsOf()
	scraped := map[string]bool{"instance": true, "le": true} // from Prometheus and from histograms
	selector := regexp.MustCompile(`(cakectl_\w+)(\{[^}]*\})?`)
	label := regexp.MustCompile(`(\w+)(=~|=|!=|!~)`)
	for _, name := range []string{"alerts.yaml", "grafana.json"} {
		text := strings.ReplaceAll(read(t, name), `\"`, `"`)
		uses := selector.FindAllStringSubmatch(text, -1)
		if len(uses) < 10 {
			t.Errorf("%s: %d metrics, which is too few to be all", name, len(uses))
		}
		for _, use := range uses {
			labels, ok := known[use[1]]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if !ok {
					labels, ok = known[strings.TrimSuffix(use[1], suffix)]
				}
			}
			if !ok {
				t.Errorf("%s: there is no metric %s", name, use[1])
			}
			for _, l := range label.FindAllStringSubmatch(use[2], -1) {
				if !scraped[l[1]] && !strings.Contains(" "+strings.Join(labels, " ")+" ", " "+l[1]+" ") {
					t.Errorf("%s: %s has no label %s", name, use[1], l[1])
				}
			}
		}
	}
	if !json.Valid([]byte(read(t, "grafana.json"))) {
		t.Error("grafana.json is no JSON")
	}
}

// The configurations are good ones, and all YAML can be read.
func TestConfigurations(t *testing.T) {
	if _, err := config.ReadFile("cakectl.yaml"); err != nil {
		t.Error(err)
	}
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	configurations := 0
	for _, file := range files {
		documents := yaml.NewDecoder(strings.NewReader(read(t, file)), yaml.AllowDuplicateMapKey())
		for {
			var document struct {
				Kind string            `yaml:"kind"`
				Data map[string]string `yaml:"data"`
			}
			err := documents.Decode(&document)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
				break
			}
			for name, text := range document.Data {
				configurations++
				if _, err := config.ParseFile(file+" "+name, []byte(text)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if configurations != 1 {
		t.Errorf("%d configurations in config maps, want 1", configurations)
	}
}

// The unit is one that systemd takes.
func TestUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze on this machine")
	}
	// What it starts has to exist.
	unit := strings.ReplaceAll(read(t, "cakectl.service"), "/usr/local/sbin/cakectl", "/bin/true")
	path := filepath.Join(t.TempDir(), "cakectl.service")
	if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
