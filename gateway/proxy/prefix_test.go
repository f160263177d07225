package proxy

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

func prefixIn(t *testing.T, members string) pick.Prefix {
	t.Helper()
	e, err := openai.DecodeEnvelope([]byte(`{"model":"m",` + members + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return prefixOf(e)
}

func TestWhereAPromptBegins(t *testing.T) {
	const system, one = `{"role":"system","content":"be kind"}`, `{"role":"user","content":"one"}`
	first := prefixIn(t, `"messages":[`+system+`,`+one+`]`)
	for what, c := range map[string]struct {
		members     string
		shared, own bool // the same as first's
	}{
		"the next turn":         {`"messages": [ ` + system + ` , ` + one + `,{"role":"assistant","content":"1"},{"role":"user","content":"two"}]`, true, true},
		"another parameter":     {`"temperature":0.5,"messages":[` + system + `,` + one + `]`, true, true},
		"another conversation":  {`"messages":[` + system + `,{"role":"user","content":"two"}]`, true, false},
		"another system prompt": {`"messages":[{"role":"system","content":"be brief"},` + one + `]`, false, false},
		"a second one":          {`"messages":[` + system + `,{"role":"developer","content":"x"},` + one + `]`, false, false},
		"tools":                 {`"tools":[{}],"messages":[` + system + `,` + one + `]`, false, false},
		"no system prompt":      {`"messages":[` + one + `]`, false, false},
	} {
		p := prefixIn(t, c.members)
		if p.Shared == 0 || p.Own == 0 || (p.Shared == first.Shared) != c.shared || (p.Own == first.Own) != c.own {
			t.Errorf("%s: %+v beside %+v", what, p, first)
		}
	}
	for _, none := range []string{`"messages":[]`, `"messages":"x"`, `"input":"x"`} {
		if p := prefixIn(t, none); p != (pick.Prefix{}) {
			t.Errorf("%s begins with %+v", none, p)
		}
	}
	long, other := strings.Repeat("x", 1000), strings.Repeat("y", 2000)
	a, b := prefixIn(t, `"prompt":"`+long+other+`"`), prefixIn(t, `"prompt":"`+long+long+long+`"`)
	if a.Shared != b.Shared || a.Own == b.Own || a.Own == 0 {
		t.Errorf("two texts with one beginning: %+v and %+v", a, b)
	}
	if p := prefixIn(t, `"prompt":"short"`); p.Shared == 0 || p.Own != 0 {
		t.Errorf("a short text: %+v", p)
	}
}

func TestWhatEndedIsNotCounted(t *testing.T) {
	table := route.NewTable()
	key := route.Key{Namespace: "ns", Name: "m"}
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m"})
	table.SetMac(route.Mac{Name: "a", Address: "h:1", Open: true})
	table.SetReplica(route.Replica{UID: "r", Deployment: key, DeploymentUID: "1", Mac: "a", Ready: true})
	model, _ := table.Lookup("m")
	b := newBook(waiting.Limits{})
	q := &query{model: model, prefix: pick.Prefix{Shared: 7, Own: 8}}
	first, _ := b.take(q)
	second, _ := b.take(q)
	if l := b.models[key]; l.inFlight != 2 || l.prefixes[7] != 2 {
		t.Errorf("two run: %+v", l)
	}
	first.release()
	first.release() // once is enough
	second.release()
	if l := b.models[key]; l.inFlight != 0 || len(l.prefixes) != 0 || b.replicas["r"].inFlight != 0 {
		t.Errorf("none runs: %+v", l)
	}
}
