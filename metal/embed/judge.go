package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// The prompt around a query and a document, and the default instruction, from
// the model card of Qwen3-Reranker.
const (
	judgePrefix = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. " +
		"Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
	judgeSuffix      = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
	judgeInstruction = "Given a web search query, retrieve relevant passages that answer the query"
)

// judge asks a decoder a question, and takes how likely it says yes.
type judge struct {
	prefix, suffix []int32
	yes, no        int32
}

// judgeOf prepares the question. A folder may name the two tokens; they must be
// those of the question.
func judgeOf(f *weights.File, tok *tokenizer.Tokenizer) (*judge, error) {
	if f.Dim.Architecture != "qwen3" {
		return nil, &weights.UnsupportedError{Subject: "reranker", Value: f.Dim.Architecture, Supported: []string{"bert", "qwen3", "xlm-roberta"}}
	}
	j := new(judge)
	for _, t := range []struct {
		text string
		to   *int32
	}{{"yes", &j.yes}, {"no", &j.no}} {
		var ok bool
		if *t.to, ok = tok.ID(t.text); !ok {
			return nil, fmt.Errorf("the vocabulary has no token %q, which a reranker needs for its answer: %w", t.text, weights.ErrUnsupported)
		}
	}
	var err error
	special := tokenizer.EncodeOptions{ParseSpecial: true}
	if j.prefix, err = tok.Encode(judgePrefix, special); err != nil {
		return nil, err
	}
	if j.suffix, err = tok.Encode(judgeSuffix, special); err != nil {
		return nil, err
	}
	if f.Folder() == nil || !f.Folder().Has(weights.ModulesFile) {
		return j, nil
	}
	return j, j.check(f.Folder())
}

// check compares with what a LogitScore module of the folder says.
func (j *judge) check(dir *folder.Folder) error {
	modules, err := weights.ModulesOf(dir)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if m.Kind != "LogitScore" {
			continue
		}
		sub, err := dir.Sub(m.Path)
		if err != nil {
			return readError(err)
		}
		defer sub.Close()
		var c struct {
			Yes *int32 `json:"true_token_id"`
			No  *int32 `json:"false_token_id"`
		}
		if err := sub.JSON(configFile, maxConfigBytes, &c); err != nil {
			return readError(err)
		}
		if c.Yes == nil || c.No == nil || *c.Yes != j.yes || *c.No != j.no {
			return fmt.Errorf("module %q: %w", clip(m.Path), &weights.UnsupportedError{Subject: "score", Value: "of other tokens", Supported: []string{fmt.Sprintf("true_token_id %d (yes) and false_token_id %d (no)", j.yes, j.no)}})
		}
		return nil
	}
	return nil
}

// question is the text that a decoder judges.
func question(query, document string, o Options) string {
	return "<Instruct>: " + cmp.Or(o.Instruction, judgeInstruction) + "\n<Query>: " + query + "\n<Document>: " + document
}

// judged writes the question about a document.
func (c *Conventions) judged(ctx context.Context, tok *tokenizer.Tokenizer, query, document string, o Options) (Tokenized, error) {
	j := c.judge
	room := c.limit(o) - len(j.prefix) - len(j.suffix)
	if room < 1 {
		return Tokenized{}, fmt.Errorf("%w: the query and the template have %d tokens, but the limit is %d", ErrTooLong, len(j.prefix)+len(j.suffix), c.limit(o))
	}
	ids, err := o.encode(ctx, tok, question(query, document, o), room)
	if err != nil {
		return Tokenized{}, err
	}
	t, err := c.around(tok, room, o.Truncate, ids)
	t.tokens += len(j.prefix) + len(j.suffix)
	return t, errors.Join(err, c.checkRows(tok, j.prefix), c.checkRows(tok, j.suffix))
}
