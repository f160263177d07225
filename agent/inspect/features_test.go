package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Templates as models have them.
const (
	chatML = `{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`
	// likeQwen writes definitions and calls of tools.
	likeQwen = `{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`
	// likeLlama needs the text of a special token.
	likeLlama = `{{- bos_token }}
{%- if tools is not none and tools is defined %}
    {{- "<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n" }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}{{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" + message.content | tojson + "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}`
)

// configured is a tokenizer_config.json with a template.
func configured(t *testing.T, template any) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"add_bos_token": false, "bos_token": nil, "eos_token": "<|im_end|>", "model_max_length": 131072, "tokenizer_class": "Qwen2Tokenizer",
		"added_tokens_decoder": map[string]any{"0": map[string]any{"content": "<|im_start|>", "special": true}}, "chat_template": template,
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestFeaturesAreWhatTheTemplatesOfAFolderDo(t *testing.T) {
	const config, file, forTools = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
	chats, tools := []model.Feature{model.Chat}, []model.Feature{model.Chat, model.Tools}
	huge := bytes.Repeat([]byte(" "), 9<<20)
	named := func(name, template string) map[string]string {
		return map[string]string{"name": name, "template": template}
	}
	llama := []byte(`{"bos_token":{"content":"<|begin_of_text|>","lstrip":false},"eos_token":"<|eot_id|>","added_tokens_decoder":{}}`)
	for name, c := range map[string]struct {
		files map[string][]byte
		want  []model.Feature
	}{
		"no template":                    {files: map[string][]byte{config: []byte(`{"eos_token":"<|endoftext|>"}`)}},
		"a chat":                         {files: map[string][]byte{config: configured(t, chatML)}, want: chats},
		"tools":                          {files: map[string][]byte{config: configured(t, likeQwen)}, want: tools},
		"a file of its own":              {files: map[string][]byte{config: configured(t, nil), file: []byte(likeQwen)}, want: tools},
		"the file counts":                {files: map[string][]byte{config: configured(t, likeQwen), file: []byte(chatML)}, want: chats},
		"a special token":                {files: map[string][]byte{config: llama, file: []byte(likeLlama + `{{ bos_token + eos_token }}`)}, want: tools},
		"a special token that is absent": {files: map[string][]byte{config: []byte(`{}`), file: []byte(`{{ bos_token + messages[0].content }}`)}},
		"tools in a comment":             {files: map[string][]byte{config: configured(t, "{#- if tools %}<tool_call> tools | tojson #}"+chatML)}, want: chats},
		"tools that are tested alone":    {files: map[string][]byte{config: configured(t, "{%- if tools %}{%- set x = tools | tojson %}{%- endif %}"+chatML)}, want: chats},
		"calls without definitions":      {files: map[string][]byte{config: configured(t, strings.Replace(likeQwen, "{{- tool | tojson }}", "", 1))}, want: chats},
		"an unknown format of calls":     {files: map[string][]byte{config: configured(t, strings.ReplaceAll(likeQwen, "tool_call>", "other_call>"))}, want: chats},
		"a template for tools":           {files: map[string][]byte{config: configured(t, nil), file: []byte(chatML), forTools: []byte(likeQwen)}, want: tools},
		"named templates":                {files: map[string][]byte{config: configured(t, []any{named("default", chatML), named("tool_use", likeQwen)})}, want: tools},
		"a template for tools alone":     {files: map[string][]byte{config: configured(t, []any{named("tool_use", likeQwen)})}},
		"a broken template":              {files: map[string][]byte{config: configured(t, "{%- for message in messages %}")}},
		"one that renders nothing":       {files: map[string][]byte{config: configured(t, "{{ raise_exception('no chats') }}")}},
		"a configuration of no sense":    {files: map[string][]byte{config: []byte(`[]`)}},
		"files that are huge":            {files: map[string][]byte{config: append(configured(t, likeQwen), huge...), "special_tokens_map.json": append([]byte(`{}`), huge...)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, files := published(t, false)
			for path, content := range c.files {
				files[path] = hubtest.File{Content: content}
				at := filepath.Join(dir, path)
				if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, content, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			r, _ := onHub(t, hubtest.Of(files))
			for source, r := range map[string]*Resolver{"hf://org/tiny": r, "file:///model": localFolder(t, dir)} {
				rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: source})
				if err != nil || !slices.Equal(rec.Features, c.want) {
					t.Errorf("%s has %q, %v, want %q", source, rec.Features, err, c.want)
				}
			}
		})
	}
}

func TestFeaturesOfGGUF(t *testing.T) {
	for name, c := range map[string]struct {
		config tinymodel.Config
		want   []model.Feature
	}{
		"a chat": {config: tinymodel.Default(), want: []model.Feature{model.Chat}},
		"tools":  {config: tinymodel.Caller(), want: []model.Feature{model.Chat, model.Tools}},
	} {
		var file bytes.Buffer
		if err := tinymodel.WriteTo(&file, c.config); err != nil {
			t.Fatal(err)
		}
		repo := hubtest.Of(map[string]hubtest.File{"m.gguf": {Content: file.Bytes(), LFS: true}})
		onHub, _ := onHub(t, repo)
		for source, r := range map[string]*Resolver{"hf://org/tiny": onHub, "file:///m.gguf": local(t, map[string][]byte{"m.gguf": file.Bytes()})} {
			rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: source})
			if err != nil || !slices.Equal(rec.Features, c.want) {
				t.Errorf("%s of %s has %q, %v, want %q", name, source, rec.Features, err, c.want)
			}
		}
	}
}

// Embedding models and rerankers may have the chat template of the model that they were
// made of.
func TestAModelThatGeneratesNoTextHasNoFeatures(t *testing.T) {
	for _, reader := range tinymodel.Readers() {
		dir := filepath.Join(t.TempDir(), "model")
		if err := reader.Write(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(likeQwen), 0o600); err != nil {
			t.Fatal(err)
		}
		rec, err := localFolder(t, dir).Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///model"})
		if err != nil || rec.Facts.TaskOf() == model.Generate || len(rec.Features) > 0 {
			t.Errorf("%+v: %s has %q, %v", reader, rec.Facts.TaskOf(), rec.Features, err)
		}
	}
}

// Templates have a share of the memory for headers until they were rendered, those of one
// model at a time.
func TestMemoryOfTemplatesIsBounded(t *testing.T) {
	dir, _ := published(t, false)
	r := localFolder(t, dir)
	const all = (atOnce + 1) * weights.HeaderMemory / 2
	release, err := r.budget().Reserve(all - templateMemory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "file:///model"}); !errors.Is(err, weights.ErrBusy) {
		t.Errorf("while headers take all but %d bytes: %v", templateMemory, err)
	}
	release()
	_, err = r.features(t.Context(), 0, func() (chat.Configuration, error) {
		ended, end := context.WithCancel(t.Context())
		end()
		for range 20 { // select takes either way
			_, err := r.features(ended, 0, func() (chat.Configuration, error) {
				t.Error("the templates of two models are read at once")
				return chat.Configuration{}, nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("one that waited in vain: %v", err)
			}
		}
		if release, err := r.budget().Reserve(all - templateMemory + 1); err == nil {
			t.Error("templates that are read take no memory")
			release()
		}
		return chat.Configuration{}, nil
	})
	if err != nil {
		t.Error(err)
	}
	if release, err = r.budget().Reserve(all); err != nil {
		t.Fatalf("memory is not given back: %v", err)
	}
	release()
}
