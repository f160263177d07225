package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"

	"metalfleet.dev/metalfleet/test/fleet"
)

// written is what an API server was asked to change since it started.
type written struct {
	all, leases float64
	kinds       map[string]float64 // "VERB resource/subresource CODE" to how often
}

// since is what was asked between an earlier count and this one, the most first.
func (w written) since(before written) []string {
	var names []string
	for name, n := range w.kinds {
		if n > before.kinds[name] {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(w.kinds[b]-before.kinds[b], w.kinds[a]-before.kinds[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%.0f %s", w.kinds[name]-before.kinds[name], name)
	}
	return names
}

// countWrites asks the API server for its own count.
func countWrites(ctx context.Context, f *fleet.Fleet) (written, error) {
	clients, err := kubernetes.NewForConfig(f.Env.Config())
	if err != nil {
		return written{}, err
	}
	b, err := clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return written{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	return readWrites(b)
}

// readWrites adds up the requests that change something. The API server's own
// Leases, by which several of it would know each other, are none of the fleet's.
func readWrites(metrics []byte) (written, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics))
	if err != nil {
		return written{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	family := families["apiserver_request_total"]
	if family == nil {
		return written{}, errors.New("the API server counts no requests")
	}
	w := written{kinds: map[string]float64{}}
	for _, m := range family.GetMetric() {
		label := map[string]string{}
		for _, l := range m.GetLabel() {
			label[l.GetName()] = l.GetValue()
		}
		switch label["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		default:
			continue
		}
		w.all += m.GetCounter().GetValue()
		resource := label["resource"]
		if label["subresource"] != "" {
			resource += "/" + label["subresource"]
		}
		w.kinds[label["verb"]+" "+resource+" "+label["code"]] += m.GetCounter().GetValue()
		if label["resource"] == "leases" {
			w.leases += m.GetCounter().GetValue()
		}
	}
	return w, nil
}

// peakMB is the most memory that a process ever held.
func peakMB(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory of the operator: %w", err)
	}
	return readPeak(string(b))
}

func readPeak(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("VmHWM %q: %w", value, err)
			}
			return kib * 1024 / 1e6, nil
		}
	}
	return 0, errors.New("the process says no VmHWM")
}
