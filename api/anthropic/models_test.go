package anthropic

import (
	"net/url"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

func TestModelsComeInPages(t *testing.T) {
	var all []Model
	for _, id := range []string{"a", "b/c", "d"} {
		all = append(all, NewModel(id, 86400, 4096))
	}
	for query, want := range map[string]struct {
		ids  string
		more bool
	}{
		"":                    {ids: "a b/c d"},
		"limit=2":             {ids: "a b/c", more: true},
		"limit=1000":          {ids: "a b/c d"},
		"limit=2&after_id=a":  {ids: "b/c d"},
		"limit=1&after_id=a":  {ids: "b/c", more: true},
		"limit=1&before_id=d": {ids: "b/c", more: true},
		"before_id=b%2Fc":     {ids: "a"},
		"after_id=d":          {},
		"limit=3&unknown=x":   {ids: "a b/c d"},
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		page, err := NewModelList(all, values)
		var ids []string
		for _, m := range page.Data {
			ids = append(ids, m.ID)
		}
		if err != nil || strings.Join(ids, " ") != want.ids || page.HasMore != want.more || (page.FirstID == nil) != (len(ids) == 0) || len(ids) > 0 && (*page.FirstID != ids[0] || *page.LastID != ids[len(ids)-1]) {
			t.Errorf("%s: %+v, %v", query, page, err)
		}
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "after_id=z", "before_id=z"} {
		values, _ := url.ParseQuery(query)
		if _, err := NewModelList(all, values); err == nil {
			t.Errorf("%s is accepted", query)
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
