package weights

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// AdapterConfigFile describes an adapter, in the layout of peft and in that of mlx-lm.
const AdapterConfigFile = "adapter_config.json"

// Files of an adapter's factors.
const (
	peftFile = "adapter_model.safetensors"
	mlxFile  = "adapters.safetensors"
	// maxAdapterConfig bounds the configuration; peft lists every module in some.
	maxAdapterConfig = 1 << 20
)

// AdapterFiles are the names of the files that hold an adapter's factors.
func AdapterFiles() []string { return []string{peftFile, mlxFile} }

// AdapterConfig describes the factors of an adapter.
type AdapterConfig struct {
	// File holds the factors.
	File string
	// peft: the layout is that of peft, else that of mlx-lm.
	peft bool

	rank  int64
	alpha float64
	// stable: the scale is alpha by the root of the rank (rsLoRA).
	stable   bool
	patterns patternSet

	// scale, layers and keys are mlx-lm's: layers counts from the last, and a number
	// under 1 means all; keys is nil for every module.
	scale  float64
	layers int64
	keys   map[string]bool
}

// ParseAdapterConfig reads adapter_config.json. It refuses, by their name and with
// ErrUnsupported, settings that would change results and are not supported.
func ParseAdapterConfig(text []byte) (AdapterConfig, error) {
	c := AdapterConfig{layers: -1}
	if len(text) > maxAdapterConfig {
		return c, family.Invalidf("%s has over %d bytes", AdapterConfigFile, maxAdapterConfig)
	}
	values, err := c.read(newJSONReader(text, 0))
	if err == nil {
		if _, c.peft = values["peft_type"]; c.peft {
			err = c.readPeft(values)
		} else {
			err = c.readMLX(values)
		}
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", AdapterConfigFile, err)
	}
	return c, nil
}

// read reads the whole configuration.
func (c *AdapterConfig) read(j *jsonReader) (map[string]any, error) {
	values := map[string]any{}
	err := j.object(func(key string) error {
		var err error
		switch key {
		case "rank_pattern":
			c.patterns.ranks, err = c.patterns.read(j, key)
		case "alpha_pattern":
			c.patterns.alphas, err = c.patterns.read(j, key)
		default:
			values[key], err = j.value()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return values, j.end()
}

// number is a finite JSON number.
func number(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil && !math.IsInf(f, 0)
}

// peftWithoutEffect are keys of peft's configuration that change nothing of a trained
// adapter: its origin, its training, and modules whose factors name them anyway. The
// order of a base weight's own dimensions (fan_in_fan_out) is not that of the factors.
func peftWithoutEffect() []string {
	return []string{
		"peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type", "inference_mode",
		"r", "lora_alpha", "use_rslora", "bias", "init_lora_weights",
		"target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out", "layers_to_transform", "layers_pattern",
		"megatron_config", "megatron_core", "loftq_config", "eva_config", "qalora_group_size", "runtime_config", "ensure_weight_tying",
	}
}

func (c *AdapterConfig) readPeft(values map[string]any) error {
	c.File = peftFile
	if kind, _ := values["peft_type"].(string); kind != "LORA" {
		return family.Unsupported("peft_type", clipped(fmt.Sprint(values["peft_type"])), []string{"LORA"})
	}
	for _, key := range sortedKeys(values) {
		if !slices.Contains(peftWithoutEffect(), key) && !neutral(values[key]) {
			return family.Unsupported("setting of an adapter", key, []string{"LoRA without it; train the adapter without " + key + ", or merge it into its model"})
		}
	}
	if bias, found := values["bias"]; found && bias != "none" {
		return family.Unsupported("bias of an adapter", clipped(fmt.Sprint(bias)), []string{"none"})
	}
	// Other ways to initialise change the model's own weights.
	switch how := values["init_lora_weights"]; how {
	case nil, true, false, "gaussian", "orthogonal", "eva":
	default:
		return family.Unsupported("init_lora_weights", clipped(fmt.Sprint(how)), []string{"true", "false", "gaussian", "orthogonal", "eva", "an adapter that was converted to LoRA when it was saved"})
	}
	var ok bool
	if c.rank, ok = family.WholeNumber(values["r"]); !ok || c.rank < 1 {
		return family.Invalidf("r is %s, want a whole number from 1", family.Shown(values["r"]))
	}
	if c.alpha, ok = number(values["lora_alpha"]); !ok {
		return family.Invalidf("lora_alpha is %s, want a number", family.Shown(values["lora_alpha"]))
	}
	c.stable, _ = values["use_rslora"].(bool)
	return nil
}

// neutral reports whether a setting is off.
func neutral(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// readMLX reads mlx-lm's configuration, which is that of the training as a whole: only
// three of its keys concern the result.
func (c *AdapterConfig) readMLX(values map[string]any) error {
	c.File = mlxFile
	parameters, ok := values["lora_parameters"].(map[string]any)
	if !ok {
		return family.Invalidf("it has neither peft_type (peft) nor lora_parameters (mlx-lm)")
	}
	if kind, found := values["fine_tune_type"]; found && kind != "lora" {
		return family.Unsupported("fine_tune_type", clipped(fmt.Sprint(kind)), []string{"lora"})
	}
	for _, key := range sortedKeys(parameters) {
		if !slices.Contains([]string{"rank", "scale", "dropout", "keys"}, key) {
			return family.Unsupported("entry of lora_parameters", clipped(key), []string{"rank", "scale", "dropout", "keys"})
		}
	}
	if c.rank, ok = family.WholeNumber(parameters["rank"]); !ok || c.rank < 1 {
		return family.Invalidf("lora_parameters.rank is %s, want a whole number from 1", family.Shown(parameters["rank"]))
	}
	if c.scale, ok = number(parameters["scale"]); !ok {
		return family.Invalidf("lora_parameters.scale is %s, want a number", family.Shown(parameters["scale"]))
	}
	if n, found := values["num_layers"]; found {
		if c.layers, ok = family.WholeNumber(n); !ok {
			return family.Invalidf("num_layers is %s, want a whole number", family.Shown(n))
		}
	}
	keys, ok := parameters["keys"].([]any)
	if parameters["keys"] != nil && !ok {
		return family.Invalidf("lora_parameters.keys is not a list")
	}
	for _, k := range keys {
		name, ok := k.(string)
		if !ok {
			return family.Invalidf("lora_parameters.keys is not a list of names")
		}
		if c.keys == nil {
			c.keys = map[string]bool{}
		}
		c.keys[name] = true
	}
	return nil
}

// scaleOf is what multiplies the product of a module's factors.
func (c *AdapterConfig) scaleOf(module string, rank int64) (float32, error) {
	if !c.peft {
		if rank != c.rank {
			return 0, family.Invalidf("layer %s has rank %d, but lora_parameters.rank is %d", family.Quoted(module), rank, c.rank)
		}
		return float32(c.scale), nil
	}
	want, err := c.patterns.find(c.patterns.ranks, module, float64(c.rank))
	if err != nil {
		return 0, err
	}
	alpha, err := c.patterns.find(c.patterns.alphas, module, c.alpha)
	if err != nil {
		return 0, err
	}
	if want != float64(rank) {
		return 0, family.Invalidf("layer %s has rank %d, but %s says %v", family.Quoted(module), rank, AdapterConfigFile, want)
	}
	if c.stable {
		return float32(alpha / math.Sqrt(want)), nil
	}
	return float32(alpha / want), nil
}

// covers refuses a module that mlx-lm would leave as it is.
func (c *AdapterConfig) covers(module string, layers int) error {
	if c.peft || c.keys[module] { // a whole name counts in any layer
		return nil
	}
	inner := module
	if _, rest, found := strings.Cut(module, ".layers."); found {
		text, after, _ := strings.Cut(rest, ".")
		var n int
		if _, err := fmt.Sscanf(text, "%d", &n); err == nil && c.layers > 0 && int64(n) < int64(layers)-c.layers {
			return family.Invalidf("layer %s has factors, but num_layers is %d of %d layers", family.Quoted(module), c.layers, layers)
		}
		inner = after
	}
	if c.keys != nil && !c.keys[inner] {
		return family.Invalidf("layer %s has factors, but lora_parameters.keys does not list %s", family.Quoted(module), family.Quoted(inner))
	}
	return nil
}
