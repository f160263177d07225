package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
	"metalfleet.dev/metalfleet/metal/folder"
)

// Files of a model's folder that speak of chat, and how big they may be, in
// bytes. The largest tokenizer_config.json among the models we serve has 1.2 MB.
const (
	templateFile    = "chat_template.jinja"
	namedFolder     = "additional_chat_templates"
	legacyFile      = "chat_template.json"
	configFile      = "tokenizer_config.json"
	specialFile     = "special_tokens_map.json"
	maxConfig       = 16 << 20
	maxLegacy       = 4 << 20
	maxNamed        = 32
	templateSuffix  = ".jinja"
	defaultTemplate = "default"
	toolTemplate    = "tool_use"
)

// What special tokens with names may have together, in bytes with their names, and the JSON of
// those that are a model's own. Every render has all of them; models name tens.
const (
	maxSpecialNames = 1000
	maxSpecialBytes = 64 << 10
	maxSpecialJSON  = 1 << 20
)

// Configuration is the part of a model folder's configuration that concerns
// conversations.
type Configuration struct {
	// Templates is nil where the model has no chat template.
	Templates *Templates
	// Special are the texts of special tokens by the names that templates
	// know, such as "bos_token"; a name that is missing is undefined there.
	Special map[string]string
}

// ReadFolder reads a model's templates and special tokens as transformers
// 5.23.0 does: chat_template.jinja with those in additional_chat_templates
// first, then chat_template.json (where processors had it), then
// tokenizer_config.json. A special token is a string or an object with
// content; special_tokens_map.json counts where tokenizer_config.json lists no
// added tokens. Errors are ErrTemplate, with the special tokens, or one of folder's.
func ReadFolder(f *folder.Folder) (Configuration, error) {
	config := members{}
	if err := f.JSON(configFile, maxConfig, &config); err != nil && !errors.Is(err, folder.ErrMissing) {
		return Configuration{}, err
	}
	special, err := readSpecial(f, config)
	if err != nil {
		return Configuration{}, err
	}
	from, sources, err := readSources(f, config)
	if err != nil || len(sources) == 0 {
		return Configuration{Special: special}, err
	}
	templates, err := NewTemplates(sources)
	if err != nil {
		return Configuration{Special: special}, fmt.Errorf("%s: %w", from, err)
	}
	return Configuration{Templates: templates, Special: special}, nil
}

// FolderBytes is the size of all files that ReadFolder may read. A file that it would refuse
// counts nothing.
func FolderBytes(f *folder.Folder) (n int64) {
	size := func(f *folder.Folder, name string) {
		if file, err := f.File(name); err == nil {
			defer file.Close()
			if st, err := file.Stat(); err == nil {
				n += st.Size()
			}
		}
	}
	for _, name := range []string{configFile, specialFile, legacyFile, templateFile} {
		size(f, name)
	}
	named, err := f.Sub(namedFolder)
	if err != nil {
		return n
	}
	defer named.Close()
	names, err := named.Names(templateSuffix)
	if err != nil || len(names) > maxNamed {
		return n
	}
	for _, name := range names {
		size(named, name)
	}
	return n
}

// readSources returns the templates by name, and the file they are from.
func readSources(f *folder.Folder, config members) (from string, sources map[string]string, err error) {
	if sources, err = readFiles(f); err != nil || len(sources) > 0 {
		return templateFile, sources, err
	}
	legacy := members{}
	switch err := f.JSON(legacyFile, maxLegacy, &legacy); {
	case err == nil && !absent(legacy["chat_template"]):
		sources, err = readMember(legacyFile, legacy["chat_template"])
		return legacyFile, sources, err
	case err != nil && !errors.Is(err, folder.ErrMissing):
		return "", nil, err
	}
	if absent(config["chat_template"]) {
		return "", nil, nil
	}
	sources, err = readMember(configFile, config["chat_template"])
	return configFile, sources, err
}

// readFiles reads the templates that are files of their own.
func readFiles(f *folder.Folder) (map[string]string, error) {
	sources := map[string]string{}
	if err := readFile(f, templateFile, defaultTemplate, sources); err != nil && !errors.Is(err, folder.ErrMissing) {
		return nil, err
	}
	named, err := f.Sub(namedFolder)
	if errors.Is(err, folder.ErrMissing) {
		return sources, nil
	}
	if err != nil {
		return nil, err
	}
	defer named.Close()
	names, err := named.Names(templateSuffix)
	if err != nil {
		return nil, err
	}
	if len(names) > maxNamed {
		return nil, fmt.Errorf("%w: %s contains %d templates, more than %d", ErrTemplate, namedFolder, len(names), maxNamed)
	}
	for _, name := range names {
		if err := readFile(named, name, strings.TrimSuffix(name, templateSuffix), sources); err != nil {
			return nil, fmt.Errorf("%s: %w", namedFolder, err)
		}
	}
	return sources, nil
}

func readFile(f *folder.Folder, file, name string, into map[string]string) error {
	raw, err := f.Read(file, jinja.MaxSource)
	if err != nil {
		return err
	}
	if !utf8.Valid(raw) {
		return fmt.Errorf("%w: %s is not UTF-8", ErrTemplate, file)
	}
	into[name] = string(raw)
	return nil
}

// readMember reads a template in JSON: a string, or a list of named ones, of
// which a later one replaces an earlier one of its name.
func readMember(file string, raw json.RawMessage) (map[string]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{defaultTemplate: one}, nil
	}
	var list namedTemplates
	if json.Unmarshal(raw, &list) != nil {
		return nil, fmt.Errorf("%w: chat_template in %s is neither a string nor a list of named templates", ErrTemplate, file)
	}
	if len(list) > maxNamed {
		return nil, fmt.Errorf("%w: chat_template in %s lists more than %d templates", ErrTemplate, file, maxNamed)
	}
	sources := map[string]string{}
	for i, t := range list {
		if t.Name == nil || t.Template == nil {
			return nil, fmt.Errorf("%w: entry %d of chat_template in %s lacks a name or a template", ErrTemplate, i, file)
		}
		sources[*t.Name] = *t.Template
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%w: chat_template in %s lists no templates, want 1 to %d", ErrTemplate, file, maxNamed)
	}
	return sources, nil
}

// standardTokens are the special tokens that every tokenizer of transformers
// has a place for.
func standardTokens() []string {
	return []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
}

func readSpecial(f *folder.Folder, config members) (map[string]string, error) {
	out := map[string]string{}
	if err := addSpecial(out, configFile, config); err != nil {
		return nil, err
	}
	if _, there := config["added_tokens_decoder"]; there {
		return out, nil
	}
	listed := members{}
	if err := f.JSON(specialFile, maxConfig, &listed); err != nil && !errors.Is(err, folder.ErrMissing) {
		return nil, err
	}
	return out, addSpecial(out, specialFile, listed)
}

// addSpecial takes the standard tokens, and the model's own: any other string
// whose name ends in _token, and the members of extra_special_tokens.
func addSpecial(to map[string]string, file string, from members) error {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		raw := from[name]
		standard := slices.Contains(standardTokens(), name)
		if !standard && !strings.HasSuffix(name, "_token") {
			continue
		}
		text, ok := tokenText(raw)
		switch {
		case ok:
			to[name] = text
		case standard && absent(raw):
			delete(to, name)
		case standard:
			return fmt.Errorf("%w: %s in %s is neither a string nor an object with content", ErrTemplate, name, file)
		}
	}
	extra := from["extra_special_tokens"]
	if len(extra) > maxSpecialJSON {
		return tooManySpecial(file)
	}
	named := map[string]json.RawMessage{}
	if json.Unmarshal(extra, &named) != nil {
		named = nil // a list: tokens without names
	}
	for name, raw := range named {
		if text, ok := tokenText(raw); ok {
			to[name] = text
		}
	}
	bytes := 0
	for name, text := range to {
		bytes += len(name) + len(text)
	}
	if len(to) > maxSpecialNames || bytes > maxSpecialBytes {
		return tooManySpecial(file)
	}
	return nil
}

func tooManySpecial(file string) error {
	return fmt.Errorf("%w: %s names over %d special tokens, or over %d bytes of them", ErrTemplate, file, maxSpecialNames, maxSpecialBytes)
}

func tokenText(raw json.RawMessage) (string, bool) {
	var text *string
	if json.Unmarshal(raw, &text) == nil && text != nil {
		return *text, true
	}
	var object struct {
		Content *string `json:"content"`
	}
	if json.Unmarshal(raw, &object) != nil || object.Content == nil {
		return "", false
	}
	return *object.Content, true
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
