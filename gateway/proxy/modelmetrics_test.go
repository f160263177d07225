package proxy_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/route"
)

// modelSeries returns the metrics of models as "NAME LABELS VALUE", without those that are 0.
// The value of a histogram is its number of observations.
func (w *world) modelSeries() []string {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "metalfleet_gateway_model_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			slices.Sort(labels)
			if v := m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()); v != 0 {
				out = append(out, fmt.Sprintf("%s %s %v", f.GetName(), strings.Join(labels, " "), v))
			}
		}
	}
	return out
}

func TestRequestsAreMeasuredByModel(t *testing.T) {
	const model = "ns/m"
	stream := strings.Replace(chatBody, "{", `{"stream":true,`, 1)
	counted := func(hang func(*http.Request), texts ...string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			events(hang, texts...)(rw, r)
			agentapi.SetTokens(rw.Header(), http.TrailerPrefix+agentapi.HeaderTokens, 100, 50)
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		path   string
		body   string
		want   map[string]string // value by name and class
	}{
		"a stream": {answer: counted(nil, "x", "[DONE]"), path: chatPath, body: stream,
			want: map[string]string{"requests 2xx": "1", "first": "1", "duration": "1", "prompt": "100", "generated": "50"}},
		"a whole response": {answer: func(rw http.ResponseWriter, r *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 7, 7)
			say(`{}`)(rw, r)
		}, path: chatPath, body: chatBody, want: map[string]string{"requests 2xx": "1", "duration": "1", "prompt": "7", "generated": "7"}},
		"a stream that breaks off": {answer: counted(abort, "x"), path: chatPath, body: stream,
			want: map[string]string{"requests 5xx": "1", "first": "1"}},
		"an error": {answer: func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "{}", http.StatusBadRequest) }, path: chatPath, body: stream,
			want: map[string]string{"requests 4xx": "1"}},
		"in the background": {answer: func(rw http.ResponseWriter, r *http.Request) {
			next := make(chan struct{})
			close(next)
			slowResponse(next, make(chan error, 1))(rw, r)
		}, path: dialect.PathResponses, body: backgroundBody,
			want: map[string]string{"requests 2xx": "1", "first": "1", "duration": "1", "prompt": "100", "generated": "50"}},
		"no replica":       {path: chatPath, body: chatBody, want: map[string]string{"requests 5xx": "1"}},
		"an unknown model": {path: chatPath, body: `{"model":"unknown"}`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.deployment("m", "m")
			if c.answer != nil {
				w.addMac("a", c.answer)
			}
			read(t, w.do("POST", c.path, c.body))
			w.idle()
			var want []string
			names := map[string]string{"first": "metalfleet_gateway_model_time_to_first_token_seconds", "duration": "metalfleet_gateway_model_request_duration_seconds",
				"prompt": "metalfleet_gateway_model_prompt_tokens_total", "generated": "metalfleet_gateway_model_generated_tokens_total"}
			for what, value := range c.want {
				if class, ok := strings.CutPrefix(what, "requests "); ok {
					want = append(want, "metalfleet_gateway_model_requests_total "+class+" "+model+" "+value)
					continue
				}
				want = append(want, names[what]+" "+model+" "+value)
			}
			slices.Sort(want)
			got := w.modelSeries()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// A fleet with many models, or one whose models change names each day, must not fill Prometheus.
func TestSeriesOfModelsAreBounded(t *testing.T) {
	w := newWorld(t)
	const models = 510
	for i := range models {
		w.deployment(fmt.Sprintf("m%d", i))
		read(t, w.do("POST", chatPath, fmt.Sprintf(`{"model":"ns/m%d"}`, i)))
	}
	count := func() map[string]bool {
		names := map[string]bool{}
		for _, s := range w.modelSeries() {
			if strings.HasPrefix(s, "metalfleet_gateway_model_requests_total") {
				names[strings.Fields(s)[2]] = true
			}
		}
		return names
	}
	if got := count(); len(got) != 501 || !got["_others"] {
		t.Errorf("%d models have series, _others %v", len(got), got["_others"])
	}
	for i := range models {
		if i != 3 {
			w.table.DeleteDeployment(route.Key{Namespace: "ns", Name: fmt.Sprintf("m%d", i)}, fmt.Sprintf("m%d", i))
		}
	}
	if got := slices.Sorted(maps.Keys(count())); !slices.Equal(got, []string{"_others", "ns/m3"}) {
		t.Errorf("after the others were deleted: %q", got)
	}
}

// TestNamespacesShareTheSeriesOfModels: a tenant has 500 models and sends a request to each.
func TestNamespacesShareTheSeriesOfModels(t *testing.T) {
	w := newWorld(t)
	ask := func(namespace string, models int) (series int) {
		for i := range models {
			key := route.Key{Namespace: namespace, Name: fmt.Sprint("m", i)}
			w.table.SetDeployment(route.Deployment{Key: key, UID: key.String(), Created: 1})
			read(t, w.do("POST", chatPath, fmt.Sprintf(`{"model":%q}`, key)))
		}
		for _, s := range w.modelSeries() {
			if strings.HasPrefix(s, "metalfleet_gateway_model_requests_total 5xx "+namespace+"/") {
				series++
			}
		}
		return series
	}
	if n := ask("mallory", 510); n != 500 {
		t.Errorf("%d models of the first namespace have series", n)
	}
	if n := ask("victim", 20); n != 20 {
		t.Errorf("%d of 20 models of another namespace have series", n)
	}
	if n := ask("mallory", 510); n != 480 {
		t.Errorf("%d models of the first namespace have series after that, want 480", n)
	}
}
