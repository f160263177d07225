package openai_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

// Text and the names of Members are what package json reads.
func TestTextsWithEscapes(t *testing.T) {
	parts := []string{"a", "é", "\U0001F600", `\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u0061`, `\u00e9`, `\u00E9`, `\ud83d`, `\ude00`, `\uD83D\uDE00`, `\u0000`, `\uffff`}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var quoted strings.Builder
		for range rng.IntN(6) {
			quoted.WriteString(parts[rng.IntN(len(parts))])
		}
		raw := `"` + quoted.String() + `"`
		var want string
		if err := json.Unmarshal([]byte(raw), &want); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if got := string(openai.Text(json.RawMessage(" " + raw + " "))); got != want {
			t.Errorf("%s is %q, want %q", raw, got, want)
		}
		for name := range openai.Members(json.RawMessage("{" + raw + ":1}")) {
			if string(name) != want {
				t.Errorf("the name %s is %q, want %q", raw, name, want)
			}
		}
	}
	for _, raw := range []string{"", "null", "1", "{}", "[]", "true"} {
		if got := openai.Text(json.RawMessage(raw)); got != nil {
			t.Errorf("%s is %q", raw, got)
		}
	}
}

// A proxy reads bodies of millions of small values without memory for each.
func TestAnEnvelopeOfManySmallValues(t *testing.T) {
	for name, body := range map[string]string{
		"names with escapes":        `{"model":"m",` + strings.Repeat(`"\n":0,`, 10_000) + `"a":0}`,
		"names of an item":          `{"model":"m","input":[{"id":"a",` + strings.Repeat(`"\n":0,`, 10_000) + `"a":0}]}`,
		"items":                     `{"model":"m","input":[` + strings.Repeat(`{"id":"a"},`, 10_000) + `{"id":"last"}]}`,
		"items with types":          `{"model":"m","input":[` + strings.Repeat(`{"id":"a","type":"item_reference"},`, 10_000) + `{"id":"last"}]}`,
		"numbers that appear often": `{"model":"m",` + strings.Repeat(`"n":1,"max_tokens":1,`, 10_000) + `"a":0}`,
	} {
		var e openai.Envelope
		allocs := testing.AllocsPerRun(1, func() {
			var err error
			if e, err = openai.DecodeEnvelope([]byte(body)); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 100 {
			t.Errorf("%s: %.0f allocations", name, allocs)
		}
		if strings.HasPrefix(name, "items") && e.Reference != "last" {
			t.Errorf("%s: the last reference is %q", name, e.Reference)
		}
	}
}
