package chat

import (
	"fmt"
	"strings"
)

// Keys of GGUF. The key of a template with a dot and a name appended is that of another
// template.
const (
	keyTemplate = "tokenizer.chat_template"
	keyTokens   = "tokenizer.ggml.tokens"
	keyBOS      = "tokenizer.ggml.bos_token_id"
	keyEOS      = "tokenizer.ggml.eos_token_id"
)

// ReadGGUF reads the templates in the metadata of a GGUF file, and the special tokens as its
// vocabulary spells them. The error is an ErrTemplate, with the special tokens.
func ReadGGUF(metadata map[string]any) (Configuration, error) {
	c := Configuration{Special: specialOfGGUF(metadata)}
	sources := map[string]string{}
	for key, value := range metadata {
		name, ok := strings.CutPrefix(key, keyTemplate)
		if !ok || name != "" && name[0] != '.' {
			continue
		}
		source, ok := value.(string)
		if !ok {
			return c, fmt.Errorf("%w: %s is not a string", ErrTemplate, key)
		}
		sources[strings.TrimPrefix(name, ".")] = source
	}
	if source, ok := sources[""]; ok {
		sources[defaultTemplate] = source
		delete(sources, "")
	}
	if len(sources) == 0 {
		return c, nil
	}
	var err error
	c.Templates, err = NewTemplates(sources)
	return c, err
}

func specialOfGGUF(metadata map[string]any) map[string]string {
	out := map[string]string{}
	tokens, _ := metadata[keyTokens].([]string)
	for name, key := range map[string]string{"bos_token": keyBOS, "eos_token": keyEOS} {
		if id, ok := metadata[key].(uint64); ok && id < uint64(len(tokens)) {
			out[name] = tokens[id]
		}
	}
	return out
}
