// Package macmetrics serves the metrics of all agents at one path of the gateway, so that
// Prometheus needs no way to the Macs: the gateway asks each agent over the connection or
// tunnel that it has for requests.
//
// It owns what a Mac may contribute: series whose names begin with metalfleet_agent_, a
// bounded number of them, of which few are new, with the label mac that the gateway sets. A Mac that does not
// answer, or answers with anything else, contributes none, and its
// metalfleet_gateway_mac_scraped is 0.
//
// Start reading at Handler.ServeHTTP.
package macmetrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	prefix = "metalfleet_agent_"
	// scraped is the name of the gateway's own series about each Mac.
	scraped = "metalfleet_gateway_mac_scraped"
	label   = "mac"
	// maxBytes and maxSeries bound what one Mac contributes. An agent has about 14 series
	// for each of at most 64 replicas.
	maxBytes, maxSeries = 1 << 20, 1200
	// maxLines are a description, a type and a value for each series. maxLine bounds the
	// labels of one.
	maxLines, maxLine = 3 * maxSeries, 4 << 10
	// maxLabels bounds the labels of a series: the time of the parser grows with their square. An
	// agent's have at most 3.
	maxLabels = 8
	// parallel is how many Macs are asked at once, those of earlier scrapes included, and
	// patience how long one may take.
	parallel = 16
	patience = 5 * time.Second
	// total is how long a whole answer takes at most: less than the timeout of a scrape.
	total = 9 * time.Second
)

// Handler serves the metrics of the agents.
type Handler struct {
	// Macs returns the Macs that are asked.
	Macs func() []route.Mac
	// To returns the transport to a Mac.
	To func(route.Mac) http.RoundTripper

	running sync.Mutex        // one scrape at a time
	fresh   map[string]*fresh // of each Mac; guarded by running
	// failed are the Macs that gave no answer when they were asked last. They are asked after the
	// others, whose turn would not come where many hang. Guarded by running.
	failed map[string]bool
	room   chan struct{} // a value for each Mac that is being asked; made under running

	mu    sync.Mutex      // guards asked
	asked map[string]bool // Macs that are being asked
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.running.TryLock() {
		http.Error(w, "another scrape of the Macs is running; scrape less often", http.StatusServiceUnavailable)
		return
	}
	defer h.running.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), total)
	defer cancel()
	all := h.collect(ctx)
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	out := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if out.Encode(all[name]) != nil {
			return // the client disconnected
		}
	}
}

// answer is what one Mac contributes.
type answer struct {
	mac     string
	metrics map[string][]*dto.Metric
	err     error
}

// collect asks all Macs, some at once, and joins the series by name of those that answer until
// ctx ends.
func (h *Handler) collect(ctx context.Context) map[string]*dto.MetricFamily {
	macs := slices.Clone(h.Macs())
	slices.SortStableFunc(macs, func(a, b route.Mac) int { return order(h.failed[a.Name]) - order(h.failed[b.Name]) })
	answers := make(chan answer, len(macs))
	if h.room == nil {
		h.room = make(chan struct{}, parallel)
	}
	go h.askAll(ctx, macs, answers)
	all, unheard, known := map[string]*dto.MetricFamily{}, map[string]bool{}, map[string]*fresh{}
	for _, mac := range macs {
		unheard[mac.Name] = true
		if known[mac.Name] = h.fresh[mac.Name]; known[mac.Name] == nil {
			known[mac.Name] = newFresh(time.Now())
		}
	}
	h.fresh = known
	before := h.failed
	h.failed = map[string]bool{}
	for mac := range unheard {
		if before[mac] {
			h.failed[mac] = true // those that are not asked this time included
		}
	}
	for len(unheard) > 0 {
		select {
		case a := <-answers:
			delete(unheard, a.mac)
			addScraped(all, a.mac, a.err == nil)
			h.failed[a.mac] = a.err != nil
			if a.err == nil {
				h.fresh[a.mac].admit(a.metrics, time.Now())
			}
			for name, list := range a.metrics {
				for _, m := range list {
					add(all, name, a.mac, m)
				}
			}
		case <-ctx.Done():
			for mac := range unheard {
				addScraped(all, mac, false)
			}
			return all
		}
	}
	return all
}

// order returns 0 for a Mac that is asked first.
func order(failed bool) int {
	if failed {
		return 1
	}
	return 0
}

// askAll sends one answer of each Mac, but for those that are not asked when ctx ends. A Mac
// whose last question has not ended is not asked again: it fails.
func (h *Handler) askAll(ctx context.Context, macs []route.Mac, answers chan<- answer) {
	for _, mac := range macs {
		if !h.begin(mac.Name) {
			answers <- answer{mac: mac.Name, err: errBusy}
			continue
		}
		select {
		case h.room <- struct{}{}:
		case <-ctx.Done():
			h.end(mac.Name)
			return
		}
		go func() { // not awaited: it ends with the connection, if the Mac lets it read nothing
			defer func() { <-h.room }()
			metrics, err := askSafely(ctx, h.To(mac), mac)
			h.end(mac.Name)
			answers <- answer{mac.Name, metrics, err}
		}()
	}
}

// begin marks a Mac as being asked. It returns false if it is already.
func (h *Handler) begin(mac string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked[mac] {
		return false
	}
	if h.asked == nil {
		h.asked = map[string]bool{}
	}
	h.asked[mac] = true
	return true
}

func (h *Handler) end(mac string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.asked, mac)
}

// addScraped adds whether a Mac answered.
func addScraped(all map[string]*dto.MetricFamily, mac string, answered bool) {
	value := 0.0
	if answered {
		value = 1
	}
	add(all, scraped, mac, &dto.Metric{Untyped: &dto.Untyped{Value: &value}})
}

// add adds a series with the label of its Mac.
func add(all map[string]*dto.MetricFamily, name, mac string, m *dto.Metric) {
	if all[name] == nil {
		all[name] = &dto.MetricFamily{Name: &name, Type: dto.MetricType_UNTYPED.Enum()}
	}
	m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == label })
	m.Label = append(m.Label, &dto.LabelPair{Name: proto.String(label), Value: &mac})
	all[name].Metric = append(all[name].Metric, m)
}

var (
	errTooMuch = errors.New("the Mac sent more than an agent has")
	errBusy    = errors.New("the Mac has not ended its last answer")
)

// askSafely converts a panic over what a Mac sent into an error: it would end the gateway with
// all its requests.
func askSafely(ctx context.Context, to http.RoundTripper, mac route.Mac) (metrics map[string][]*dto.Metric, err error) {
	defer func() {
		if v := recover(); v != nil {
			metrics, err = nil, fmt.Errorf("its answer cannot be parsed: %v", v)
		}
	}()
	return ask(ctx, to, mac)
}

// ask returns the series of one Mac by name. They are untyped: Macs could disagree about a
// type, and Prometheus uses none.
func ask(ctx context.Context, to http.RoundTripper, mac route.Mac) (map[string][]*dto.Metric, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, Host: mac.Address,
		URL: &url.URL{Scheme: "https", Host: mac.Address, Path: agentapi.PathMetrics}}
	resp, err := to.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or cancelled
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	page, err := read(resp.Body)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(timed{ctx, bytes.NewReader(page)})
	if err != nil {
		return nil, err
	}
	out := map[string][]*dto.Metric{}
	for name, f := range families {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		for _, m := range f.GetMetric() {
			if value, ok := valueOf(m); ok {
				out[name] = append(out[name], &dto.Metric{Label: m.Label, Untyped: &dto.Untyped{Value: &value}})
			}
		}
	}
	return out, nil
}

// timed is a reader that fails when its context has ended.
type timed struct {
	ctx context.Context
	io.Reader
}

func (t timed) Read(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	return t.Reader.Read(p)
}

// read returns a page of metrics that is within the bounds. Its lines and their labels are
// counted before it is parsed, which takes many times its bytes.
func read(body io.Reader) ([]byte, error) {
	page, err := io.ReadAll(io.LimitReader(body, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(page) > maxBytes {
		return nil, errTooMuch
	}
	lines, series := 0, 0
	for line := range bytes.Lines(page) {
		lines++
		if line[0] != '#' {
			series++
			if bytes.Count(line, []byte("=")) > maxLabels {
				return nil, errTooMuch
			}
		}
		if lines > maxLines || series > maxSeries || len(line) > maxLine {
			return nil, errTooMuch
		}
	}
	return page, nil
}

// valueOf returns the value of a counter or gauge; agents have no other metrics.
func valueOf(m *dto.Metric) (float64, bool) {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue(), true
	case m.Gauge != nil:
		return m.Gauge.GetValue(), true
	}
	return m.GetUntyped().GetValue(), m.Untyped != nil
}
