package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
)

func good() []result {
	out := []result{
		{Name: "A", Kind: "running", Stream: true, Mac: "dead", Pieces: 5, Text: "once", Error: "APIError", Code: "engine_lost", Typed: true},
		{Name: "B", Kind: "running", Stream: true, Mac: "alive", Pieces: 9, Text: "once upon a time", Tokens: 9, Finish: "length"},
	}
	for _, kind := range []string{"waiting", "after"} {
		for i := range 4 {
			out = append(out, result{Name: fmt.Sprint(kind, "-", i), Kind: kind, Mac: "alive", Text: "once upon", Tokens: 2, Finish: "length"})
		}
	}
	return out
}

func TestJudge(t *testing.T) {
	if err := judge(io.Discard, good(), "dead", 2); err != nil {
		t.Errorf("a good run is refused: %v", err)
	}
	for name, tc := range map[string]struct {
		change func([]result) []result
		tries  int
		want   string
	}{
		"a request that waited was lost":  {func(r []result) []result { r[3].Error, r[3].Finish = "InternalServerError", ""; return r }, 2, "waiting-1: lost"},
		"a later request was lost":        {func(r []result) []result { r[9].Finish = ""; return r }, 2, "after-3: lost"},
		"the broken stream looked whole":  {func(r []result) []result { r[0].Error, r[0].Typed, r[0].Finish = "", false, "stop"; return r }, 2, "should have been broken off"},
		"the broken stream was not typed": {func(r []result) []result { r[0].Error, r[0].Typed = "RemoteProtocolError", false; return r }, 2, "want APIError"},
		"the other stream broke too":      {func(r []result) []result { r[1].Error, r[1].Finish = "APIError", ""; return r }, 2, "B: lost"},
		"the dead answered":               {func(r []result) []result { r[6].Mac = "dead"; return r }, 2, "which is dead"},
		"other words":                     {func(r []result) []result { r[2].Text = "upon"; return r }, 2, "differs"},
		"nothing waited at the dead Mac":  {slices.Clone[[]result], 0, "tried nothing again"},
		"a request is missing":            {func(r []result) []result { return r[:9] }, 2, "3 after, want 4"},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(io.Discard, tc.change(good()), "dead", tc.tries)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("judge = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestJudgeRefusals(t *testing.T) {
	good := maps.Clone(wanted)
	if err := judgeRefusals(good); err != nil {
		t.Error(err)
	}
	delete(good, "slow, again")
	good["narrow"] = "AuthenticationError 401 invalid_api_key"
	err := judgeRefusals(good)
	for _, name := range []string{`"slow, again"`, `"narrow"`} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("judgeRefusals = %v, want %s named", err, name)
		}
	}
}
