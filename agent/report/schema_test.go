package report

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// served is the schema of an older operator: no agentUpgrade, no stage
// "Warming", and reclaims that need an exit of a closed set.
const served = `{"components":{"schemas":{
"io.example.Other":{"x-kubernetes-group-version-kind":[{"group":"example.io","kind":"MacNode"}],"properties":{"status":{"properties":{}}}},
"dev.metalfleet.v1alpha1.MacNode":{"x-kubernetes-group-version-kind":[{"group":"metalfleet.dev","kind":"MacNode","version":"v1alpha1"}],
"properties":{"status":{"type":"object","properties":{
 "agentVersion":{"type":"string"},
 "memory":{"type":"object","properties":{"totalBytes":{"type":"integer"}}},
 "anything":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
 "labels":{"type":"object","additionalProperties":{"type":"string","enum":["a"]}},
 "progress":{"type":"object","properties":{"stage":{"type":"string","enum":["Loading"]}}},
 "reclaims":{"type":"array","items":{"type":"object","required":["id","exit"],"properties":{"id":{"type":"string"},"exit":{"type":"string","enum":["Clean"]}}}}
}}}}}}}`

func servedNode(t *testing.T) *node {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/openapi/v3/apis/metalfleet.dev/v1alpha1" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(served))
	}))
	defer s.Close()
	schema, err := Served(&rest.Config{Host: s.URL}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	n, err := schema.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnlyFieldsOfTheServedSchemaAreWritten(t *testing.T) {
	n := servedNode(t)
	for name, tc := range map[string]struct{ in, want, dropped string }{
		"all known":                      {in: `{"agentVersion":"v1","memory":{"totalBytes":1}}`, want: `{"agentVersion":"v1","memory":{"totalBytes":1}}`, dropped: ""},
		"a field":                        {in: `{"agentVersion":"v1","agentUpgrade":{"to":"v2"}}`, want: `{"agentVersion":"v1"}`, dropped: "status.agentUpgrade"},
		"a field of a field":             {in: `{"memory":{"totalBytes":1,"swapBytes":2}}`, want: `{"memory":{"totalBytes":1}}`, dropped: "status.memory.swapBytes"},
		"a word of a closed set":         {in: `{"progress":{"stage":"Warming"}}`, want: `{"progress":{}}`, dropped: "status.progress.stage"},
		"what then lacks its due":        {in: `{"reclaims":[{"id":"1","exit":"Clean"},{"id":"2","exit":"Gone"}]}`, want: `{"reclaims":[{"exit":"Clean","id":"1"}]}`, dropped: "status.reclaims[] status.reclaims[].exit"},
		"a field of a list's items":      {in: `{"reclaims":[{"id":"1","exit":"Clean","load":1}]}`, want: `{"reclaims":[{"exit":"Clean","id":"1"}]}`, dropped: "status.reclaims[].load"},
		"what takes anything keeps it":   {in: `{"anything":{"x":{"y":1}}}`, want: `{"anything":{"x":{"y":1}}}`, dropped: ""},
		"a map's values have one schema": {in: `{"labels":{"k":"a","l":"b"}}`, want: `{"labels":{"k":"a"}}`, dropped: "status.labels.l"},
	} {
		t.Run(name, func(t *testing.T) {
			dropped := map[string]bool{}
			got, ok := n.prune(json.RawMessage(tc.in), "status", dropped)
			if d := cmp.Diff(tc.want, string(got)); !ok || d != "" {
				t.Errorf("ok %v: %s", ok, d)
			}
			want := map[string]bool{}
			for _, p := range strings.Fields(tc.dropped) {
				want[p] = true
			}
			if d := cmp.Diff(want, dropped); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWhatIsLeftOutIsToldOnceAndReadAgainAfterARefusal(t *testing.T) {
	var lines []string
	n, reads := servedNode(t), 0
	var failure error
	s := &Schema{log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}),
		read: func(context.Context) (*node, error) { reads++; return n, failure }}
	newer := &v1alpha1.MacNodeStatus{AgentVersion: "v1", AgentUpgrade: &v1alpha1.AgentUpgrade{To: "v2"}}
	for range 3 {
		if got, err := s.fit(t.Context(), newer); err != nil || got.AgentUpgrade != nil || *got.AgentVersion != "v1" {
			t.Errorf("written: %+v (%v)", got, err)
		}
	}
	if reads != 1 || len(lines) != 1 || !strings.Contains(lines[0], "status.agentUpgrade") {
		t.Errorf("read %d times, told %q; want once each", reads, lines)
	}
	failure = errors.New("away")
	s.doubt()
	if got, err := s.fit(t.Context(), newer); err != nil || reads != 2 || got.AgentUpgrade != nil {
		t.Errorf("read %d times, written %+v (%v): the last schema known does not count", reads, got, err)
	}
	never := &Schema{log: logr.Discard(), read: func(context.Context) (*node, error) { return nil, failure }}
	if got, err := never.fit(t.Context(), newer); err != nil || got.AgentUpgrade == nil {
		t.Error("without any schema something was left out")
	}
	var none *Schema
	none.doubt()
	if got, err := none.fit(t.Context(), newer); err != nil || got.AgentUpgrade == nil {
		t.Error("without a schema something was left out")
	}
}
