package embed

import (
	"errors"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/weights"
)

const (
	configFile = "config.json"
	// maxConfigBytes bounds each of them; real ones have under 1 kB.
	maxConfigBytes = 64 << 10
)

// supportedModes are what messages list.
func supportedModes() []string { return []string{"cls", "lasttoken", "mean"} }

// Of reads how a model pools: from modules.json and the folder of its Pooling
// module (sentence-transformers), or from a GGUF file's pooling_type; Default
// where neither says. weights.ErrUnsupported for what this package does not
// build, weights.ErrInvalid for files that contradict themselves or the model.
func Of(f *weights.File) (Pooling, error) {
	if dir := f.Folder(); dir != nil {
		return Read(dir, f.Dim.Hidden)
	}
	return ofMetadata(f.Metadata, f.Dim.Architecture)
}

// ofMetadata reads GGUF's pooling_type (enum llama_pooling_type of llama.cpp);
// its programs normalise what they pool.
func ofMetadata(metadata map[string]any, architecture string) (Pooling, error) {
	key := architecture + ".pooling_type"
	v, ok := metadata[key]
	if !ok {
		return Default(), nil
	}
	n, ok := v.(uint64)
	if !ok {
		return Pooling{}, fmt.Errorf("metadata key %s is not a whole number: %w", key, weights.ErrInvalid)
	}
	switch n {
	case 0: // none: a plain decoder
		return Default(), nil
	case 1:
		return Pooling{Mean, true}, nil
	case 2:
		return Pooling{First, true}, nil
	case 3:
		return Pooling{Last, true}, nil
	}
	return Pooling{}, fmt.Errorf("metadata key %s: %w", key, &weights.UnsupportedError{Subject: "pooling", Value: fmt.Sprint(n), Supported: []string{"0", "1", "2", "3"}})
}

// Read reads how the model of a folder pools; hidden is its width. Default
// without modules.json.
func Read(f *folder.Folder, hidden int) (Pooling, error) {
	if !f.Has(weights.ModulesFile) {
		return Default(), nil
	}
	modules, err := weights.ModulesOf(f)
	if err != nil {
		return Pooling{}, err
	}
	for i, want := range []string{"Transformer", "Pooling"} {
		if i >= len(modules) {
			return Pooling{}, fmt.Errorf("%s: %s module: %w", weights.ModulesFile, want, weights.ErrMissing)
		}
		if got := modules[i].Kind; got != want {
			return Pooling{}, fmt.Errorf("%s: %w", weights.ModulesFile, &weights.UnsupportedError{Subject: "module", Value: clip(got), Supported: []string{want}})
		}
	}
	mode, err := readPooling(f, modules[1].Path, hidden)
	if err != nil {
		return Pooling{}, fmt.Errorf("module %q: %w", modules[1].Path, err)
	}
	if len(modules) == 3 { // it can only be Normalize
		if err := checkNormalize(f, modules[2].Path); err != nil {
			return Pooling{}, fmt.Errorf("module %q: %w", modules[2].Path, err)
		}
	}
	return Pooling{Mode: mode, Normalize: len(modules) == 3}, nil
}

// poolingConfig is the configuration of a Pooling module, in the words of
// version 6 and in those before it (sentence_transformers/sentence_transformer/
// modules/pooling.py, 6.2).
type poolingConfig struct {
	Mode      any `json:"pooling_mode"`
	Dimension int `json:"embedding_dimension"`

	OldDimension int  `json:"word_embedding_dimension"`
	First        bool `json:"pooling_mode_cls_token"`
	Max          bool `json:"pooling_mode_max_tokens"`
	Mean         bool `json:"pooling_mode_mean_tokens"`
	MeanSqrt     bool `json:"pooling_mode_mean_sqrt_len_tokens"`
	Weighted     bool `json:"pooling_mode_weightedmean_tokens"`
	Last         bool `json:"pooling_mode_lasttoken"`

	// WithPrompt is false if the tokens of the prompt are excluded from the
	// pooling.
	WithPrompt *bool `json:"include_prompt"`
}

func readPooling(f *folder.Folder, path string, hidden int) (Mode, error) {
	sub, err := f.Sub(path)
	if err != nil {
		return 0, readError(err)
	}
	defer sub.Close()
	var c poolingConfig
	if err := sub.JSON(configFile, maxConfigBytes, &c); err != nil {
		return 0, readError(err)
	}
	if d := max(c.Dimension, c.OldDimension); d != 0 && d != hidden {
		return 0, fmt.Errorf("%s pools vectors of size %d, but the model has size %d: %w", configFile, d, hidden, weights.ErrInvalid)
	}
	modes, err := c.modes()
	if err != nil {
		return 0, err
	}
	if len(modes) != 1 {
		return 0, &weights.UnsupportedError{Subject: "pooling", Value: clip(strings.Join(modes, " and ")), Supported: supportedModes()}
	}
	if c.WithPrompt != nil && !*c.WithPrompt && modes[0] != "lasttoken" {
		return 0, &weights.UnsupportedError{Subject: "include_prompt", Value: "false", Supported: []string{"true"}}
	}
	switch modes[0] {
	case "mean":
		return Mean, nil
	case "cls":
		return First, nil
	case "lasttoken":
		return Last, nil
	}
	return 0, &weights.UnsupportedError{Subject: "pooling", Value: clip(modes[0]), Supported: supportedModes()}
}

// modes are those that are on; the newer key wins, and none is mean.
func (c poolingConfig) modes() ([]string, error) {
	switch v := c.Mode.(type) {
	case nil:
	case string:
		return []string{v}, nil
	case []any:
		var out []string
		for _, m := range v {
			name, ok := m.(string)
			if !ok {
				return nil, fmt.Errorf("pooling_mode is not a list of names: %w", weights.ErrInvalid)
			}
			out = append(out, name)
		}
		return out, nil
	default:
		return nil, fmt.Errorf("pooling_mode is not a name: %w", weights.ErrInvalid)
	}
	var out []string
	for _, m := range []struct {
		on   bool
		name string
	}{{c.First, "cls"}, {c.Max, "max"}, {c.Mean, "mean"}, {c.MeanSqrt, "mean_sqrt_len_tokens"}, {c.Weighted, "weightedmean"}, {c.Last, "lasttoken"}} {
		if m.on {
			out = append(out, m.name)
		}
	}
	if out == nil {
		return []string{"mean"}, nil
	}
	return out, nil
}

// checkNormalize refuses a Normalize module that normalises something else
// than the vector of the text. Older folders have no configuration of it.
func checkNormalize(f *folder.Folder, path string) error {
	sub, err := f.Sub(path)
	if errors.Is(err, folder.ErrMissing) {
		return nil
	}
	if err != nil {
		return readError(err)
	}
	defer sub.Close()
	if !sub.Has(configFile) {
		return nil
	}
	var c struct {
		In  *string `json:"module_input_name"`
		Out *string `json:"module_output_name"`
	}
	if err := sub.JSON(configFile, maxConfigBytes, &c); err != nil {
		return readError(err)
	}
	const vector = "sentence_embedding"
	for _, name := range []*string{c.In, c.Out} {
		if name != nil && *name != vector {
			return &weights.UnsupportedError{Subject: "normalising", Value: clip(*name), Supported: []string{vector}}
		}
	}
	return nil
}

// readError gives an error of the folder the meaning that callers branch on.
func readError(err error) error {
	if errors.Is(err, folder.ErrMissing) {
		return fmt.Errorf("%w: %w", weights.ErrMissing, err)
	}
	return fmt.Errorf("%w: %w", weights.ErrInvalid, err)
}

// clip shortens what a file says for a message.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most]
	}
	return s
}
