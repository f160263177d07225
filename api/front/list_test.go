package front_test

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"metalfleet.dev/metalfleet/api/front"
)

// list is a response with a list.
type list struct {
	Kind  string `json:"kind"`
	Data  []any  `json:"data"`
	Other []any  `json:"other"`
}

// largest counts the largest write of a response.
type largest struct {
	*httptest.ResponseRecorder
	bytes int
}

func (l *largest) Write(p []byte) (int, error) {
	l.bytes = max(l.bytes, len(p))
	return l.ResponseRecorder.Write(p)
}

func TestAListIsWrittenEntryByEntry(t *testing.T) {
	for name, c := range map[string]struct {
		entries []any
		short   bool
	}{
		"none":  {entries: []any{}, short: true},
		"few":   {entries: []any{"a", "b<", "c"}, short: true},
		"many":  {entries: slices.Repeat([]any{"an entry of a long list"}, 5000)},
		"large": {entries: slices.Repeat([]any{string(make([]byte, 9000))}, 4)},
		"mixed": {entries: slices.Repeat([]any{string(make([]byte, 9000)), "small"}, 4)},
	} {
		w := &largest{ResponseRecorder: httptest.NewRecorder()}
		if err := front.WriteList(w, list{Kind: "k", Data: []any{}, Other: []any{}}, slices.Values(c.entries)); err != nil {
			t.Fatal(err)
		}
		var got list
		whole := w.Body.Bytes()
		if err := json.Unmarshal(whole, &got); err != nil || !reflect.DeepEqual(got, list{Kind: "k", Data: c.entries, Other: []any{}}) {
			t.Errorf("%s: %.200s (%v)", name, whole, err)
		}
		if length := w.Header().Get("Content-Length"); c.short != (length == strconv.Itoa(len(whole))) || !c.short && length != "" {
			t.Errorf("%s: Content-Length %q of %d", name, length, len(whole))
		}
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d, %v", name, w.Code, w.Header())
		}
		if w.bytes > 64<<10 {
			t.Errorf("%s: one write has %d bytes", name, w.bytes)
		}
	}
}

func TestAListThatCannotBeWritten(t *testing.T) {
	bad := any(math.NaN())
	fails := any(func() ([]byte, error) { return nil, io.ErrUnexpectedEOF })
	many := slices.Repeat([]any{"an entry of a long list"}, 5000)
	for name, c := range map[string]struct {
		frame   any
		entries []any
		gone    bool // when writing has begun
	}{
		"a bad entry":            {frame: list{Data: []any{}}, entries: []any{bad}},
		"a bad entry after many": {frame: list{Data: []any{}}, entries: append(many, bad), gone: true},
		"one not encoded":        {frame: list{Data: []any{}}, entries: []any{fails}},
		"one of many":            {frame: list{Data: []any{}}, entries: append(many, fails), gone: true},
		"no list":                {frame: struct{}{}},
		"a bad frame":            {frame: bad},
	} {
		w := httptest.NewRecorder()
		err := front.WriteList(w, c.frame, slices.Values(c.entries))
		if err == nil || errors.Is(err, front.ErrClientGone) != c.gone || (w.Body.Len() > 0) != c.gone {
			t.Errorf("%s: %v, %d bytes written", name, err, w.Body.Len())
		}
	}
}

// refusing fails every write.
type refusing struct{ http.ResponseWriter }

func (refusing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestAListForAClientThatLeft(t *testing.T) {
	for _, n := range []int{1, 5000} {
		entries := slices.Repeat([]any{"an entry of a long list"}, n)
		if err := front.WriteList(refusing{httptest.NewRecorder()}, list{Data: []any{}}, slices.Values(entries)); !errors.Is(err, front.ErrClientGone) {
			t.Errorf("%d entries: %v", n, err)
		}
	}
}
