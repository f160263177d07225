//go:build !race

package table

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTheRowsAreSound(t *testing.T) {
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Clients() {
		n := 0
		for _, r := range rows {
			if r.For(c) {
				n++
			}
		}
		if n < 12 {
			t.Errorf("%s plays %d rows", c.Name, n)
		}
	}
}

func TestRowsThatAreNotSoundAreRefused(t *testing.T) {
	const steps = "says: s\n  steps: [{call: c, want: {result: 1}}]"
	for name, tc := range map[string]struct{ rows, says string }{
		"no want":              {"- row: a\n  api: openai\n  says: s\n  steps: [{call: c}]", "wants nothing"},
		"no steps":             {"- row: a\n  api: openai\n  says: s", "a row has a name, a sentence and steps"},
		"an unknown API":       {"- row: a\n  api: other\n  " + steps, "no client speaks"},
		"another API's client": {"- row: a\n  api: openai\n  clients: [anthropic-python]\n  why: w\n  " + steps, "is no client of openai"},
		"left out, and no why": {"- row: a\n  api: openai\n  clients: [openai-go]\n  " + steps, "go together"},
		"twice":                {"- row: a\n  api: openai\n  " + steps + "\n- row: a\n  api: openai\n  " + steps, "stands twice"},
		"a key, and no keys":   {"- row: a\n  api: openai\n  says: s\n  steps: [{call: c, key: k, want: {result: 1}}]", "go together"},
		"keys, and no key":     {"- row: a\n  api: openai\n  keys: true\n  " + steps, "go together"},
		"an unknown member":    {"- row: a\n  colour: blue\n  api: openai\n  " + steps, "colour"},
	} {
		if _, err := parse([]byte(tc.rows)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAReplyIsJudged(t *testing.T) {
	var reply any
	if err := json.Unmarshal([]byte(`{"result":{"a":1,"list":[{"x":"p","n":2},{"x":"q","n":3}],"none":null},"error":null}`), &reply); err != nil {
		t.Fatal(err)
	}
	kept := map[string]any{"one": 1.0, "word": "p"}
	for name, tc := range map[string]struct {
		path, lacks string // empty: it holds
		want        any
	}{
		"equal":              {"result.a", "", 1},
		"not equal":          {"result.a", "is does not hold", 2},
		"what was kept":      {"result.a", "", "${one}"},
		"nothing was kept":   {"result.a", "nothing was kept", "${two}"},
		"in a text":          {"result.list.0.x", "", map[string]any{"matches": "^${word}$"}},
		"missing":            {"result.b", "it is not there", 1},
		"missing, as wanted": {"result.b", "", map[string]any{"exists": false}},
		"there, unwanted":    {"result.a", "want false", map[string]any{"exists": false}},
		"null":               {"result.none", "", nil},
		"from the end":       {"result.list.-1.x", "", "q"},
		"each":               {"result.list.*.n", "", map[string]any{"least": 2}},
		"not each":           {"result.list.*.n", "least does not hold of 2", map[string]any{"least": 3}},
		"most":               {"result.list.*.n", "most does not hold of 3", map[string]any{"most": 2}},
		"joined":             {"result.list.*.x", "", map[string]any{"joined": "pq"}},
		"joined otherwise":   {"result.list.*.x", "together", map[string]any{"joined": "p"}},
		"length":             {"result.list", "", map[string]any{"length": 2}},
		"another length":     {"result.list", "length does not hold", map[string]any{"length": 1}},
		"length of nothing":  {"result.none", "length does not hold", map[string]any{"length": 0}},
		"how many":           {"result.list.#", "", map[string]any{"least": 2}},
		"one of":             {"result.a", "one_of does not hold", map[string]any{"one_of": []any{2.0, 3.0}}},
		"contains":           {"result.list", "contains does not hold", map[string]any{"contains": "z"}},
		"not":                {"result.a", "not does not hold", map[string]any{"not": 1}},
		"an unknown rule":    {"result.a", "there is no rule", map[string]any{"about": 1}},
	} {
		err := Judge(map[string]any{tc.path: tc.want}, reply, kept)
		if (err == nil) != (tc.lacks == "") || err != nil && !strings.Contains(err.Error(), tc.lacks) {
			t.Errorf("%s: %v, want %q", name, err, tc.lacks)
		}
	}
}

func TestAnErrorThatNobodyWantsFailsARow(t *testing.T) {
	reply := map[string]any{"result": map[string]any{"a": 1.0}, "error": map[string]any{"class": "BadRequestError"}}
	if err := Judge(map[string]any{"result.a": 1}, reply, nil); err == nil || !strings.Contains(err.Error(), "an error came") {
		t.Error(err)
	}
	want := map[string]any{"error.class": "BadRequestError"}
	if err := Judge(want, reply, nil); err != nil {
		t.Error(err)
	}
	if err := Judge(Client{Error: "Error"}.Wants(want), reply, nil); err == nil {
		t.Error("a client with one class of errors has to show that one")
	}
}
