//go:build !race

package anthropic_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
)

// TestAttackToolsAreCountedBeforeTheyAreRead: a body of many tools takes no more memory than one of
// as many as are allowed, besides what its own bytes take.
func TestAttackToolsAreCountedBeforeTheyAreRead(t *testing.T) {
	message := func(b []byte) error { _, err := anthropic.Decode(&openai.Decoder{}, b); return err }
	for name, c := range map[string]struct {
		tool   string
		decode func(b []byte) error
	}{
		"messages":                    {tool: `{"name":"a","input_schema":{}}`, decode: message},
		"messages, tools of a server": {tool: `{"name":"a","type":"web_search_20250305"}`, decode: message},
		"count of tokens":             {tool: `{"name":"a","input_schema":{}}`, decode: func(b []byte) error { _, err := anthropic.DecodeCount(&openai.Decoder{}, b); return err }},
		"chat completions":            {tool: `{"type":"function","function":{"name":"a","parameters":{}}}`, decode: func(b []byte) error { _, err := (&openai.Decoder{}).Chat(b); return err }},
	} {
		read := func(tools int) (took, size uint64, err error) {
			body := `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":[` + strings.Repeat(c.tool+",", tools-1) + c.tool + `]}`
			if strings.HasPrefix(name, "count") {
				body = strings.Replace(body, `"max_tokens":1,`, "", 1)
			}
			raw := []byte(body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err = c.decode(raw)
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc, uint64(len(raw)), err
		}
		allowed, _, _ := read(openai.MaxTools)
		took, size, err := read(100 * openai.MaxTools)
		if e := new(openai.Error); !errors.As(err, &e) || e.Param != "tools" || !strings.Contains(e.Message, "at most 1024") {
			t.Errorf("%s: %v", name, err)
		}
		if took > 2*allowed+8*size {
			t.Errorf("%s: %d bytes of tools take %d bytes, as many as are allowed %d", name, size, took, allowed)
		}
	}
}
