//go:build !race

package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
	"metalfleet.dev/metalfleet/metal/folder"
)

// readFolder writes files and reads their configuration.
func readFolder(t testing.TB, files map[string]string) (Configuration, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return ReadFolder(f)
}

func TestTemplateComesFromTheFirstFileThatHasOne(t *testing.T) {
	jinjaFile, legacy, config := map[string]string{templateFile: "jinja"}, map[string]string{legacyFile: `{"chat_template":"legacy"}`}, map[string]string{configFile: `{"chat_template":"config"}`}
	named := map[string]string{configFile: `{"chat_template":[{"name":"default","template":"first"},{"name":"tool_use","template":"tools"},{"name":"rag","template":"{% broken"},{"name":"default","template":"plain"}]}`}
	separate := map[string]string{namedFolder + "/tool_use.jinja": "file for tools", namedFolder + "/note.txt": "{%"}
	tests := map[string]struct {
		files        []map[string]string
		plain, tools string // empty for no template
	}{
		"nothing":                                 {},
		"one file":                                {files: []map[string]string{jinjaFile}, plain: "jinja", tools: "jinja"},
		"the file before the others":              {files: []map[string]string{jinjaFile, legacy, config}, plain: "jinja", tools: "jinja"},
		"the processor's before the tokenizer's":  {files: []map[string]string{legacy, config}, plain: "legacy", tools: "legacy"},
		"the tokenizer's":                         {files: []map[string]string{config}, plain: "config", tools: "config"},
		"the tokenizer's where others are empty":  {files: []map[string]string{config, {legacyFile: `{"chat_template":null}`}}, plain: "config", tools: "config"},
		"named ones, the later of one name":       {files: []map[string]string{named}, plain: "plain", tools: "tools"},
		"a separate file for tools":               {files: []map[string]string{jinjaFile, separate, config}, plain: "jinja", tools: "file for tools"},
		"a file instead of the default":           {files: []map[string]string{jinjaFile, {namedFolder + "/default.jinja": "later"}}, plain: "later", tools: "later"},
		"files alone, which replace the config's": {files: []map[string]string{separate, config}, tools: "file for tools"},
		"no template in the configuration":        {files: []map[string]string{{configFile: `{"model_max_length":7,"Chat_Template":"x"}`}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for _, f := range tc.files {
				maps.Copy(files, f)
			}
			c, err := readFolder(t, files)
			if err != nil {
				t.Fatal(err)
			}
			if c.Templates == nil {
				if tc.plain+tc.tools != "" {
					t.Fatal("no template was found")
				}
				return
			}
			for tools, want := range map[string]string{"": tc.plain, "[]": tc.plain, `[{"name":"f"}]`: tc.tools} {
				got, err := c.Templates.Render(context.Background(), []Message{{Role: "user"}}, Options{Tools: json.RawMessage(tools)})
				if got != want || (err != nil) != (want == "") || (err != nil && !errors.Is(err, ErrTemplate)) {
					t.Errorf("with tools %q: %q, %v, want %q", tools, got, err, want)
				}
			}
		})
	}
}

func TestSpecialTokensAreThoseThatTransformersGives(t *testing.T) {
	tests := map[string]struct {
		config, special string
		want            map[string]string
	}{
		"strings, objects and none": {config: `{"bos_token":"<s>","eos_token":{"__type":"AddedToken","content":"</s>","lstrip":false},"pad_token":null,"add_bos_token":true}`, special: "",
			want: map[string]string{"bos_token": "<s>", "eos_token": "</s>"}},
		"the model's own": {config: `{"image_token":"<image>","extra_special_tokens":{"audio_token":"<audio>"},"additional_special_tokens":["<x>"],"use_default":"y"}`, special: "",
			want: map[string]string{"image_token": "<image>", "audio_token": "<audio>"}},
		"the map overrides": {config: `{"bos_token":"<s>","eos_token":"</s>"}`, special: `{"eos_token":{"content":"<end>"},"unk_token":"<unk>","bos_token":null}`,
			want: map[string]string{"eos_token": "<end>", "unk_token": "<unk>"}},
		"not where added tokens are listed": {config: `{"bos_token":"<s>","added_tokens_decoder":{}}`, special: `{"bos_token":"<other>","eos_token":"<end>"}`,
			want: map[string]string{"bos_token": "<s>"}},
		"the map alone": {special: `{"bos_token":"<s>"}`, want: map[string]string{"bos_token": "<s>"}},
		"nothing":       {want: map[string]string{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for file, text := range map[string]string{configFile: tc.config, specialFile: tc.special} {
				if text != "" {
					files[file] = text
				}
			}
			c, err := readFolder(t, files)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, c.Special); diff != "" {
				t.Error(diff)
			}
		})
	}
	o := Options{BOS: "<b>", Special: map[string]string{"bos_token": "<s>", "pad_token": "<pad>", "messages": "no"}, Arguments: json.RawMessage(`{"pad_token":"<mine>"}`)}
	if got := render(t, "{{ bos_token }}{{ pad_token }}{{ messages[0].content }}", []Message{{Role: "user", Content: "c"}}, o); got != "<b><mine>c" {
		t.Errorf("got %s", got)
	}
}

// names are members of an object: n names that end like this.
func names(n int, end string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"n%d%s":"x"`, i, end)
	}
	return b.String()[1:]
}

// TestAConfigurationOfManyMembers: what concerns no conversation takes no memory once it is
// read, and a render that is not wanted any more does nothing. 1.6 million names took 450 MB of
// an inspection, and more than its time.
func TestAConfigurationOfManyMembers(t *testing.T) {
	var m members
	text := []byte(`{"bos_token":"<s>",` + names(200_000, "") + `,` + names(200_000, "_token") + `}`)
	if err := json.Unmarshal(text, &m); err != nil || len(m) > 2*maxSpecialNames+1 || string(m["bos_token"]) != `"<s>"` {
		t.Errorf("%d members, %v", len(m), err)
	}
	parsed, err := Parse("{{ messages[0].content }}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := parsed.Render(ctx, []Message{{Role: "user"}}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a render after its end: %v", err)
	}
}

// TestAListOfManyTemplatesIsNotKept: 5.5 million empty entries took 314 MiB of an inspection.
func TestAListOfManyTemplatesIsNotKept(t *testing.T) {
	var list namedTemplates
	text := `[` + strings.Repeat(`{},`, 1000) + `{}]`
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != maxNamed+1 || cap(list) > 2*maxNamed {
		t.Errorf("%d entries, with room for %d (%v)", len(list), cap(list), err)
	}
}

func TestHostileFoldersAreRefused(t *testing.T) {
	many := map[string]string{}
	for i := range maxNamed + 1 {
		many[namedFolder+"/"+strings.Repeat("x", i+1)+".jinja"] = "x"
	}
	tests := map[string]struct {
		files map[string]string
		kind  error
		says  string
	}{
		"a template that is too long":      {files: map[string]string{templateFile: strings.Repeat("x", jinja.MaxSource+1)}, kind: folder.ErrTooLarge, says: templateFile},
		"a named one that is too long":     {files: map[string]string{namedFolder + "/tool_use.jinja": strings.Repeat("x", jinja.MaxSource+1)}, kind: folder.ErrTooLarge, says: "tool_use.jinja"},
		"too many named ones":              {files: many, kind: ErrTemplate, says: "more than 32"},
		"a configuration that is too long": {files: map[string]string{configFile: strings.Repeat(" ", maxConfig+1)}, kind: folder.ErrTooLarge, says: configFile},
		"a map that is too long":           {files: map[string]string{specialFile: strings.Repeat(" ", maxConfig+1)}, kind: folder.ErrTooLarge, says: specialFile},
		"a processor file too long":        {files: map[string]string{legacyFile: strings.Repeat(" ", maxLegacy+1)}, kind: folder.ErrTooLarge, says: legacyFile},
		"a configuration that is no JSON":  {files: map[string]string{configFile: `{"chat_template":`}, kind: folder.ErrInvalid, says: configFile},
		"a configuration that is a list":   {files: map[string]string{configFile: `[]`}, kind: folder.ErrInvalid, says: configFile},
		"a folder in place of a file":      {files: map[string]string{templateFile + "/x": ""}, kind: folder.ErrInvalid, says: templateFile},
		"a file in place of a folder":      {files: map[string]string{namedFolder: ""}, kind: folder.ErrInvalid, says: namedFolder},
		"a template that is none":          {files: map[string]string{templateFile: "{% if %}"}, kind: ErrTemplate, says: "line 1"},
		"a template that is no text":       {files: map[string]string{templateFile: "\xff\xfe"}, kind: ErrTemplate, says: "UTF-8"},
		"a template that is a number":      {files: map[string]string{configFile: `{"chat_template":7}`}, kind: ErrTemplate, says: "neither a string nor a list"},
		"a list of strings":                {files: map[string]string{configFile: `{"chat_template":["x"]}`}, kind: ErrTemplate, says: "neither a string nor a list"},
		"an entry without a name":          {files: map[string]string{configFile: `{"chat_template":[{"template":"x"}]}`}, kind: ErrTemplate, says: "entry 0"},
		"an empty list":                    {files: map[string]string{configFile: `{"chat_template":[]}`}, kind: ErrTemplate, says: "lists no templates"},
		"a list of many entries":           {files: map[string]string{configFile: `{"chat_template":[` + strings.Repeat("{},", maxNamed) + `{}]}`}, kind: ErrTemplate, says: "more than 32"},
		"names that are never picked":      {files: map[string]string{configFile: `{"chat_template":[{"name":"rag","template":"x"}]}`}, kind: ErrTemplate, says: `no template named "default", only: rag`},
		"a token that is a number":         {files: map[string]string{configFile: `{"bos_token":7}`}, kind: ErrTemplate, says: "bos_token"},
		"tokens of many names":             {files: map[string]string{configFile: `{"extra_special_tokens":{` + names(maxSpecialNames+1, "") + `}}`}, kind: ErrTemplate, says: "over 1000 special tokens"},
		"many tokens of their own":         {files: map[string]string{configFile: `{` + names(3*maxSpecialNames, "_token") + `}`}, kind: ErrTemplate, says: "over 1000 special tokens"},
		"tokens of many bytes":             {files: map[string]string{specialFile: `{"bos_token":"` + strings.Repeat("x", maxSpecialBytes) + `"}`}, kind: ErrTemplate, says: "over 65536 bytes"},
		"a token without content":          {files: map[string]string{specialFile: `{"eos_token":{"id":7}}`}, kind: ErrTemplate, says: "eos_token"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := readFolder(t, tc.files)
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %v saying %q", err, tc.kind, tc.says)
			}
		})
	}
}

func TestCheckTriesTheTemplateForToolsWithTools(t *testing.T) {
	for source, good := range map[string]bool{"{{ tools[0].function.name }}": true, "{{ tools | length }}": true, "{{ raise_exception('never') }}": false, "{{ tools.x.y }}": false} {
		templates, err := NewTemplates(map[string]string{"default": "{{ raise_exception('no tools') if tools }}", "tool_use": source})
		if err != nil {
			t.Fatal(err)
		}
		if err := templates.Check(context.Background(), Options{}); (err == nil) != good {
			t.Errorf("%s: %v", source, err)
		}
	}
}

func TestFolderBytesCountsWhatIsRead(t *testing.T) {
	dir, want := t.TempDir(), int64(0)
	for i, name := range []string{configFile, specialFile, legacyFile, templateFile, namedFolder + "/a.jinja", namedFolder + "/b.jinja", "tokenizer.json", namedFolder + "/note.txt"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 1<<i), 0o600)); err != nil {
			t.Fatal(err)
		}
		if i < 6 {
			want += 1 << i
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := FolderBytes(f); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
