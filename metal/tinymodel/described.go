package tinymodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Described is a random model of any decoder family: its tensors follow from
// its configuration.
type Described struct {
	Name string
	// Config is config.json, without the ids of special tokens.
	Config map[string]any
	// Matrices is the format of matrices. Routers, convolutions and matrices
	// that do not fit the format are stored in its float type.
	Matrices quant.Format
	Seed     uint64
	// Renamed are pairs of a part of a tensor's name and what stands in its place, where
	// mlx-lm has other names than package family.
	Renamed []string
	// Images is preprocessor_config.json of a model with a vision tower; nil leaves the
	// tower out.
	Images map[string]any
}

// Write writes a folder of safetensors, configuration and tokenizer. dir must
// not exist. The names of tensors are those of mlx-lm.
func (m Described) Write(dir string) error {
	d, err := m.dimensions()
	if err != nil {
		return fmt.Errorf("write random model %s: %w", m.Name, err)
	}
	if d.Encoder != nil {
		return errors.New("write random model " + m.Name + ": it is an encoder, which Reader writes")
	}
	slots, err := d.Slots(math.MaxInt32)
	if err != nil {
		return fmt.Errorf("write random model %s: %w", m.Name, err)
	}
	tied, _ := m.Config["tie_word_embeddings"].(bool)
	var parts []part
	for _, s := range slots {
		if s.GGUFOnly || s.Optional && (tied || !strings.HasPrefix(s.Path, "lm_head.")) {
			continue
		}
		t := described(s)
		p, err := t.parts(m.format(t), m.Seed)
		if err != nil {
			return err
		}
		for i, name := range p {
			p[i].name = strings.NewReplacer(m.Renamed...).Replace(name.name)
			if strings.HasSuffix(name.name, ".conv1d.weight") && len(name.shape) == 2 { // as mlx.nn has it
				p[i].shape = append(name.shape, 1)
			}
		}
		parts = append(parts, p...)
	}
	if m.Images != nil {
		tower, err := towerParts(*d.Tower, m.Seed)
		if err != nil {
			return err
		}
		parts = append(parts, tower...)
	}
	if err := m.writeFiles(dir, d); err != nil {
		return err
	}
	return writeShards(dir, "mlx", shards(parts, 5e9))
}

// writeFiles writes what a folder has besides tensors.
func (m Described) writeFiles(dir string, d family.Dimensions) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write random model %s: %w", m.Name, err)
	}
	text := Config{Name: m.Name, Family: Llama, Vocabulary: d.Vocabulary, Context: d.Context, Merged: m.Images == nil, Endless: true}.filled()
	vocab := newVocabulary()
	vocab.fill(text)
	var added []any
	if m.Images != nil {
		added = vocab.see()
	}
	config := map[string]any{"bos_token_id": 1, "eos_token_id": text.endOfTurn()}
	for key, v := range m.Config {
		config[key] = v
	}
	if m.Matrices.Quantized() {
		config["quantization"] = quantizationWords(m.Matrices)
	}
	files := map[string]any{
		"config.json": config, "generation_config.json": text.generation(),
		"tokenizer.json": text.tokenizer(vocab), "tokenizer_config.json": text.tokenizerConfig(),
	}
	if m.Images != nil {
		definition, settings := text.tokenizer(vocab), text.tokenizerConfig()
		definition["added_tokens"] = append(definition["added_tokens"].([]any), added...)
		settings["chat_template"] = seeingTemplate(*d.Tower)
		files["tokenizer.json"], files["tokenizer_config.json"], files["preprocessor_config.json"] = definition, settings, m.Images
	}
	for name, content := range files {
		if err := writeJSON(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	return nil
}

// dimensions reads the configuration as it is read from its file.
func (m Described) dimensions() (family.Dimensions, error) {
	text, err := json.Marshal(m.Config)
	if err != nil {
		return family.Dimensions{}, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return family.Dimensions{}, err
	}
	return family.NewConfig(values).Dimensions()
}

// described is the tensor of a slot. Weights of norms are about 1, those of
// matrices keep the size of what they multiply, all others are small.
func described(s family.Slot) tensor {
	t := tensor{path: s.Path, values: values{std: 0.02}, cols: int(s.Shape[len(s.Shape)-1])}
	switch name, weight := strings.CutSuffix(s.Path, ".weight"); {
	case weight:
		t.path = name
	case strings.HasSuffix(s.Path, ".bias"):
		t.path, t.bias = strings.TrimSuffix(s.Path, ".bias"), true
	default:
		t.bare = true
	}
	switch len(s.Shape) {
	case 1:
		if !t.bias && !t.bare {
			t.values.mean = 1
		}
	case 2:
		t.rows, t.values.std = int(s.Shape[0]), 1/math.Sqrt(float64(t.cols))
		t.silent = t.path == "model.embed_tokens" || t.path == "lm_head" // so that the last token, which ends a turn, is never the likeliest
	default:
		t.stack, t.rows, t.values.std = int(s.Shape[0]), int(s.Shape[1]), 1/math.Sqrt(float64(t.cols))
		t.kernel = strings.HasSuffix(t.path, "conv1d")
	}
	return t
}

// format is how a tensor is stored.
func (m Described) format(t tensor) quant.Format {
	dense := quant.DenseOf(m.Matrices.Type)
	if !m.Matrices.Quantized() || t.rows == 0 || t.bias || t.bare || t.kernel || t.cols%m.Matrices.Group != 0 || strings.HasSuffix(t.path, ".gate") {
		return dense
	}
	return m.Matrices
}
