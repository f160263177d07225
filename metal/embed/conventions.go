package embed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// ErrTooLong means that an input has more tokens than the model's context.
var ErrTooLong = errors.New("the input is too long")

// ErrPrompt means that the model has no prompt of this name, or takes no
// instruction.
var ErrPrompt = errors.New("unknown prompt")

const (
	sentenceFile  = "sentence_bert_config.json"
	promptsFile   = "config_sentence_transformers.json"
	tokenizerFile = "tokenizer_config.json"
	// maxTokenizerBytes bounds tokenizer_config.json, in which templates stand.
	maxTokenizerBytes = 4 << 20
	// comparedContexts is how many contexts of a query are compared with a document to find the
	// longer one, if both are truncated: of longer ones one token may be cut from the other.
	comparedContexts = 8
)

// Conventions describe the input format of an embedding model or reranker.
type Conventions struct {
	Task    model.Task
	Pooling Pooling
	// Limit is the model's maximum input length in tokens.
	Limit int
	// Width is how many numbers the result of an input has.
	Width int
	// Prompts are prefixes for texts to embed, by name; Default is the name of
	// the one used for requests that name none, if any.
	Prompts map[string]string
	Default string
	// Instructed models take the task of a query in words.
	Instructed bool
	// rows is the number of tokens that the model has embeddings for.
	rows int
	// judge is how a decoder is asked for a score; nil for others.
	judge *judge
	// identity: a score is the head's logit, not its sigmoid.
	identity bool
}

// Input is one text, or two, as tokens.
type Input struct{ IDs, Types []int32 }

// Options select how texts are formatted.
type Options struct {
	// Prompt is the name of the prefix for each text to embed.
	Prompt string
	// Instruction describes in words what a query is for.
	Instruction string
	// Truncate truncates inputs that are too long; otherwise they are refused.
	Truncate bool
	// MaxTokens is the maximum length of an input, which is truncated to it if
	// Truncate is set; 0 means the model's.
	MaxTokens int
	// InputType is the kind of texts to embed, such as query or document. The
	// model's prompt for that kind precedes them, if it has one.
	InputType string
	// excess is that of tokenizer.EncodeOptions; nil if each text counts alone.
	excess *int
}

// OfOneRequest returns options with which all texts may cost no more work, besides that for their
// bytes, than one of them.
func (o Options) OfOneRequest() Options {
	o.excess = new(int)
	return o
}

// inputTypes are names that makers give to the prompt for one kind of texts.
var inputTypes = [][]string{
	{"query", "search_query", "retrieval.query", "s2p_query"},
	{"document", "search_document", "passage", "retrieval.passage", "text", "corpus"},
}

// promptFor returns the name of the model's prompt for a kind of texts; empty for
// none.
func (c *Conventions) promptFor(inputType string) string {
	names := []string{inputType}
	for _, same := range inputTypes {
		if slices.Contains(same, inputType) {
			names = append(names, same...)
		}
	}
	for _, name := range names {
		if _, ok := c.Prompts[name]; ok {
			return name
		}
	}
	return ""
}

// limit is how many tokens of an input are read.
func (c *Conventions) limit(o Options) int {
	if o.MaxTokens > 0 {
		return min(c.Limit, o.MaxTokens)
	}
	return c.Limit
}

// ConventionsOf reads the conventions of a model. task is the intended use;
// empty means the one that the model declares. A decoder that declares none may
// have any.
func ConventionsOf(f *weights.File, tok *tokenizer.Tokenizer, task model.Task) (*Conventions, error) {
	said, err := f.Task()
	if err != nil {
		return nil, err
	}
	if task == "" {
		task = said
	}
	if said != model.Generate && task != said {
		return nil, fmt.Errorf("the model is for %s, not for %s: %w", said, task, weights.ErrUnsupported)
	}
	c := &Conventions{rows: f.Dim.Vocabulary, Task: task, Limit: f.Dim.Context, Width: 1, Instructed: f.Dim.Architecture == "qwen3"}
	if f.Folder() != nil {
		if err := c.read(f.Folder()); err != nil {
			return nil, err
		}
	}
	switch {
	case task == model.Rerank && f.Dim.Encoder == nil:
		if c.judge, err = judgeOf(f, tok); err == nil {
			err = c.checkRows(tok, []int32{c.judge.yes, c.judge.no})
		}
	case task == model.Rerank:
		c.identity = f.Dim.Encoder.Identity
	case task == model.Embed:
		c.Width = f.Dim.Hidden
		c.Pooling, err = Of(f)
	}
	return c, err
}

// read reads the optional small files next to the weights.
func (c *Conventions) read(dir *folder.Folder) error {
	var sentence struct {
		Most  *int `json:"max_seq_length"`
		Lower bool `json:"do_lower_case"`
	}
	var words struct {
		Prompts map[string]string `json:"prompts"`
		Default *string           `json:"default_prompt_name"`
	}
	var tok struct {
		Most json.Number `json:"model_max_length"`
	}
	for _, file := range []struct {
		name  string
		bytes int64
		to    any
	}{{sentenceFile, maxConfigBytes, &sentence}, {promptsFile, maxConfigBytes, &words}, {tokenizerFile, maxTokenizerBytes, &tok}} {
		if err := dir.JSON(file.name, file.bytes, file.to); err != nil && !errors.Is(err, folder.ErrMissing) {
			return readError(err)
		}
	}
	if sentence.Lower {
		return fmt.Errorf("%s: %w", sentenceFile, &weights.UnsupportedError{Subject: "do_lower_case", Value: "true", Supported: []string{"false"}})
	}
	if most, err := tok.Most.Float64(); sentence.Most == nil && err == nil && most >= 1 && most < float64(c.Limit) {
		c.Limit = int(most)
	}
	if sentence.Most != nil {
		if *sentence.Most < 1 {
			return fmt.Errorf("%s: max_seq_length is %d: %w", sentenceFile, *sentence.Most, weights.ErrInvalid)
		}
		c.Limit = min(c.Limit, *sentence.Most)
	}
	c.Prompts = words.Prompts
	if words.Default != nil && *words.Default != "" {
		if _, ok := c.Prompts[*words.Default]; !ok {
			return fmt.Errorf("%s: default_prompt_name %q is not a known prompt: %w", promptsFile, clip(*words.Default), weights.ErrInvalid)
		}
		c.Default = *words.Default
	}
	return nil
}

// prompt is what stands before a text to embed.
func (c *Conventions) prompt(o Options) (string, error) {
	switch {
	case o.Prompt != "" && o.Instruction != "":
		return "", fmt.Errorf("%w: want a prompt or an instruction, not both", ErrPrompt)
	case o.Instruction != "" && !c.Instructed:
		return "", fmt.Errorf("%w: this model does not support an instruction", ErrPrompt)
	case o.Instruction != "": // the model card of Qwen3-Embedding
		return "Instruct: " + o.Instruction + "\nQuery:", nil
	}
	name := cmp.Or(o.Prompt, c.promptFor(o.InputType), c.Default)
	if name == "" {
		return "", nil
	}
	prompt, ok := c.Prompts[name]
	if !ok {
		names := slices.Sorted(maps.Keys(c.Prompts))
		return "", fmt.Errorf("%w: %q; the model has %s", ErrPrompt, clip(name), orNone(names))
	}
	return prompt, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Repeated is how many bytes are tokenized again for each text of a request: its prompt or
// instruction, and its query if the model reads it together with the document.
func (c *Conventions) Repeated(query string, o Options) int {
	if c.Task == model.Rerank {
		if c.judge == nil {
			return 0
		}
		return len(question(query, "", o))
	}
	prompt, _ := c.prompt(o) // Text returns the error
	return len(prompt)
}

// encode returns the tokens of a text of which limit are read, and one more if there are others, so
// that it is known to be too long. What is much longer is truncated, or ErrTooLong.
func (o Options) encode(ctx context.Context, tok *tokenizer.Tokenizer, text string, limit int) ([]int32, error) {
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{Stop: ctx.Err, Limit: limit + 1, Cut: o.Truncate, Excess: o.excess})
	if errors.Is(err, tokenizer.ErrTooMany) {
		return nil, fmt.Errorf("%w: a text has more than %d tokens, but the model supports %d including its own", ErrTooLong, limit+1, limit)
	}
	return ids, err
}

// Text writes a text to embed. Errors are ErrEmpty, ErrTooLong, ErrPrompt, that of ctx and
// those of the tokenizer.
func (c *Conventions) Text(ctx context.Context, tok *tokenizer.Tokenizer, text string, o Options) (Tokenized, error) {
	prompt, err := c.prompt(o)
	if err != nil {
		return Tokenized{}, err
	}
	ids, err := o.encode(ctx, tok, prompt+text, c.limit(o))
	if err != nil {
		return Tokenized{}, err
	}
	return c.around(tok, c.limit(o), o.Truncate, ids)
}

// Tokens accepts a text that the client has tokenized, without special tokens.
// No prompt is added, because prompts are text. Errors are those of Text.
func (c *Conventions) Tokens(tok *tokenizer.Tokenizer, ids []int32, o Options) (Tokenized, error) {
	if o.Prompt != "" || o.Instruction != "" || c.Prompts[c.promptFor(o.InputType)] != "" {
		return Tokenized{}, fmt.Errorf("%w: a prompt or an instruction requires text input, but the input is tokens", ErrPrompt)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= min(tok.Size(), c.rows) {
			return Tokenized{}, fmt.Errorf("token %d is %d, but the model has %d", i, id, min(tok.Size(), c.rows))
		}
	}
	return c.around(tok, c.limit(o), o.Truncate, ids)
}

// Pairs returns a function that writes the query and a document to be scored. The query is
// tokenized only once, except for a decoder, whose tokens may span query and document. Errors
// are those of Text.
func (c *Conventions) Pairs(ctx context.Context, tok *tokenizer.Tokenizer, query string, o Options) (func(document string) (Tokenized, error), error) {
	if c.judge != nil {
		return func(document string) (Tokenized, error) { return c.judged(ctx, tok, query, document, o) }, nil
	}
	if o.Instruction != "" {
		return nil, fmt.Errorf("%w: this model does not support an instruction", ErrPrompt)
	}
	most := c.limit(o)
	if o.Truncate {
		most = comparedContexts * c.Limit
	}
	first, err := o.encode(ctx, tok, query, most)
	if err != nil {
		return nil, err
	}
	first = slices.Clone(first) // without the room that it grew into
	// Both are truncated by which of them is longer.
	limit := max(c.limit(o), len(first))
	return func(document string) (Tokenized, error) {
		second, err := o.encode(ctx, tok, document, limit)
		if err != nil {
			return Tokenized{}, err
		}
		return c.around(tok, c.limit(o), o.Truncate, first, second)
	}, nil
}

func tooLong(tokens, limit int) error {
	return fmt.Errorf("%w: the texts have %d tokens, but the model supports %d including its own", ErrTooLong, tokens, limit)
}

// checkRows refuses tokens that the tokenizer has and the model has not.
func (c *Conventions) checkRows(tok *tokenizer.Tokenizer, ids []int32) error {
	for _, id := range ids {
		if int(id) >= c.rows {
			return fmt.Errorf("the text has the token %q (%d), but the model has no embedding for it, only for tokens 0 to %d; remove it from the text", tok.Bytes(id), id, c.rows-1)
		}
	}
	return nil
}
