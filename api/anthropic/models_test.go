//go:build !race

package anthropic

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

func TestModelsComeInPages(t *testing.T) {
	var all []Model
	for _, id := range []string{"a", "b/c", "d", "e"} {
		all = append(all, NewModel(id, 86400, 4096))
	}
	for query, want := range map[string]struct {
		ids  string
		more bool
	}{
		"":                       {ids: "a b/c d e"},
		"limit=2":                {ids: "a b/c", more: true},
		"limit=1000":             {ids: "a b/c d e"},
		"limit=2&after_id=a":     {ids: "b/c d", more: true},
		"limit=2&after_id=b%2Fc": {ids: "d e"},
		"limit=1&after_id=a":     {ids: "b/c", more: true},
		"limit=1&before_id=d":    {ids: "b/c", more: true},
		"limit=2&before_id=d":    {ids: "a b/c"},
		"limit=2&before_id=e":    {ids: "b/c d", more: true},
		"before_id=b%2Fc":        {ids: "a"},
		"after_id=e":             {},
		"limit=4&unknown=x":      {ids: "a b/c d e"},
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		page, more, err := pageOf(values, all)
		var ids []string
		for _, m := range page {
			ids = append(ids, m.ID)
		}
		if err != nil || strings.Join(ids, " ") != want.ids || more != want.more {
			t.Errorf("%s: %+v, %t, %v", query, page, more, err)
		}
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "after_id=z", "before_id=z"} {
		values, _ := url.ParseQuery(query)
		if _, _, err := pageOf(values, all); err == nil {
			t.Errorf("%s is accepted", query)
		}
	}
	for want, list := range map[string]ModelList{
		`{"data":[],"first_id":null,"last_id":null,"has_more":false}`: NewModelList("", "", false),
		`{"data":[],"first_id":"a","last_id":"b","has_more":true}`:    NewModelList("a", "b", true),
	} {
		if raw, err := openai.Marshal(list); err != nil || string(raw) != want {
			t.Errorf("%s, %v, want %s", raw, err, want)
		}
	}
	raw, err := openai.Marshal(all[0])
	const want = `{"type":"model","id":"a","display_name":"a","created_at":"1970-01-02T00:00:00Z","max_input_tokens":4096,"max_tokens":4096,"lifecycle":"active","capabilities":null,"line":null,"deprecated_at":null,"retires_at":null}`
	if err != nil || string(raw) != want {
		t.Errorf("%s, %v", raw, err)
	}
	if m := NewModel("x", 0, 0); m.MaxInputTokens != nil || m.MaxTokens != nil {
		t.Errorf("an unknown context length: %+v", m)
	}
}

func pageOf(query url.Values, all []Model) ([]Model, bool, error) {
	p, err := ParsePage(query)
	if err != nil {
		return nil, false, err
	}
	return PageOf(p, slices.Values(all), func(m Model) string { return m.ID })
}
