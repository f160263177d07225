//go:build !race

package chat

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
	"metalfleet.dev/metalfleet/metal/folder"
)

// styles are the templates that jinja's golden file holds, with conversations
// for them.
func styles(f *testing.F) (templates []string, messages []string) {
	f.Helper()
	raw, err := os.ReadFile(filepath.Join("jinja", "testdata", "golden.json"))
	if err != nil {
		f.Fatal(err)
	}
	var g struct {
		Styles        map[string]string
		Conversations []struct {
			Variables struct{ Messages json.RawMessage }
		}
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"chatml", "llama3", "mistral", "qwen3"} {
		if g.Styles[name] == "" {
			f.Fatalf("no template %s", name)
		}
		templates = append(templates, g.Styles[name])
	}
	for _, c := range g.Conversations {
		messages = append(messages, string(c.Variables.Messages))
	}
	return templates, messages
}

// FuzzMessages wants any messages, tools and arguments to render, or to be
// refused as the client's fault.
func FuzzMessages(f *testing.F) {
	sources, conversations := styles(f)
	templates := make([]*Template, len(sources))
	for i, source := range sources {
		var err error
		if templates[i], err = Parse(source); err != nil {
			f.Fatal(err)
		}
	}
	for i, messages := range conversations {
		f.Add(byte(i), messages, `[{"type":"function","function":{"name":"f","parameters":{}}}]`, `{"enable_thinking":false,"documents":[{"text":"t"}]}`)
	}
	f.Fuzz(func(t *testing.T, which byte, raw, tools, arguments string) {
		messages, err := ParseMessages([]byte(raw))
		if err != nil && !errors.Is(err, ErrMessages) {
			t.Fatalf("untyped error %v", err)
		}
		if err != nil { // like unknown fields of an API request
			messages = []Message{{Role: "user", Content: raw, Extra: json.RawMessage(raw)}}
		}
		limits := jinja.Limits{Steps: 50_000, Bytes: 4 << 20, Output: 1 << 20}
		text, err := templates[int(which)%len(templates)].Render(context.Background(), messages,
			Options{BOS: "<s>", Tools: json.RawMessage(tools), Arguments: json.RawMessage(arguments), Now: time.Unix(0, 0), Limits: limits})
		switch {
		case err == nil && len(text) > limits.Output:
			t.Fatalf("%d bytes of output", len(text))
		case err != nil && !errors.Is(err, ErrMessages) && !errors.Is(err, ErrTemplate):
			t.Fatalf("untyped error %v", err)
		}
	})
}

// FuzzFolder wants any files of a model to be read or refused with a typed
// error, and templates that were taken to render or to fail with one.
func FuzzFolder(f *testing.F) {
	f.Add("", `{"chat_template":"{{ bos_token }}","bos_token":{"content":"<s>"}}`, `{"eos_token":"</s>"}`, "", "")
	f.Add("{{ messages }}", `{"chat_template":[{"name":"default","template":"x"},{"name":"tool_use","template":"y"}]}`, `{}`, `{"chat_template":"z"}`, "{{ tools }}")
	f.Add("", `{"extra_special_tokens":{"image_token":"<i>"},"added_tokens_decoder":{}}`, `[`, `{"chat_template":null}`, "")
	f.Fuzz(func(t *testing.T, template, config, special, legacy, tools string) {
		files := map[string]string{}
		for name, text := range map[string]string{templateFile: template, configFile: config, specialFile: special, legacyFile: legacy, namedFolder + "/tool_use.jinja": tools} {
			if text != "" {
				files[name] = text
			}
		}
		c, err := readFolder(t, files)
		if err != nil {
			if !errors.Is(err, ErrTemplate) && !errors.Is(err, folder.ErrInvalid) && !errors.Is(err, folder.ErrTooLarge) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if c.Templates == nil {
			return
		}
		err = c.Templates.Check(context.Background(), Options{Special: c.Special, Limits: jinja.Limits{Steps: 10_000, Bytes: 1 << 20}})
		if err != nil && !errors.Is(err, ErrTemplate) {
			t.Fatalf("untyped error %v", err)
		}
	})
}
