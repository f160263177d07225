package model

import (
	"fmt"
	"strings"
)

// Facts are the dimensions that determine how much memory a model needs and
// whether an engine can run it. Zero means that the headers do not contain the
// value.
type Facts struct {
	// architecture is the model architecture as the file names it, for example
	// llama or qwen3.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Architecture string `json:"architecture"`
	// name is the model's own name. It is absent when the file does not contain
	// one.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
	// task is what the model is for. Default: Generate. Valid values are:
	// - Generate: generates text.
	// - Embed: converts texts to embedding vectors.
	// - Rerank: scores documents for a query.
	// +optional
	Task Task `json:"task,omitempty"`
	// quantization is the dominant weight type, for example "Q4_1", "BF16" or
	// "affine 4-bit group 64".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Quantization string `json:"quantization,omitempty"`
	// layers is the number of transformer blocks.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Layers int64 `json:"layers,omitempty"`
	// growingLayers is the number of layers whose KV cache grows with every
	// token (attention without a sliding window). It equals layers for a plain
	// decoder. The growing, window, recurrent, stateless and encoder layers add
	// up to all layers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GrowingLayers int64 `json:"growingLayers,omitempty"`
	// windowLayers is the number of layers with sliding-window attention over
	// the last windowTokens tokens.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowLayers int64 `json:"windowLayers,omitempty"`
	// windowTokens is the size of the sliding window, in tokens.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowTokens int64 `json:"windowTokens,omitempty"`
	// encoderLayers is the number of layers with bidirectional attention, which
	// keep no KV cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EncoderLayers int64 `json:"encoderLayers,omitempty"`
	// statelessLayers is the number of layers that keep nothing of a sequence:
	// those that read the KV cache of an earlier layer, and those without
	// attention.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StatelessLayers int64 `json:"statelessLayers,omitempty"`
	// recurrentLayers is the number of layers that keep a state of constant
	// size for each sequence instead of keys and values.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentLayers int64 `json:"recurrentLayers,omitempty"`
	// recurrentStateBytes is the size of the states of all recurrent layers for
	// one sequence, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentStateBytes int64 `json:"recurrentStateBytes,omitempty"`
	// recurrentSize is the width of the activations that a recurrent layer
	// computes for a token: queries, keys, values and the output gate.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentSize int64 `json:"recurrentSize,omitempty"`
	// hiddenSize is the width of the residual stream.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HiddenSize int64 `json:"hiddenSize,omitempty"`
	// feedForwardSize is the inner width of the feed-forward block, or of one
	// expert when every block is a mixture of experts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FeedForwardSize int64 `json:"feedForwardSize,omitempty"`
	// experts is the number of experts in a mixture-of-experts block; all of
	// them are in memory. It is absent for other models.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Experts int64 `json:"experts,omitempty"`
	// expertsPerToken is the number of experts that process a token.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ExpertsPerToken int64 `json:"expertsPerToken,omitempty"`
	// expertFeedForwardSize is the inner width of one expert.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ExpertFeedForwardSize int64 `json:"expertFeedForwardSize,omitempty"`
	// queryHeads is the number of attention heads.
	// +optional
	// +kubebuilder:validation:Minimum=0
	QueryHeads int64 `json:"queryHeads,omitempty"`
	// keyValueHeads is the number of key and value heads (grouped-query
	// attention).
	// +optional
	// +kubebuilder:validation:Minimum=0
	KeyValueHeads int64 `json:"keyValueHeads,omitempty"`
	// headSize is the width of one head.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HeadSize int64 `json:"headSize,omitempty"`
	// growingElements is the number of elements that a growing layer keeps of each
	// token in its KV cache. It is absent when it equals 2 * keyValueHeads *
	// headSize.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GrowingElements int64 `json:"growingElements,omitempty"`
	// windowElements is the same for a layer with a sliding window.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowElements int64 `json:"windowElements,omitempty"`
	// layerInputSize is the width of the per-layer embeddings of all layers
	// together, and of parallel residuals. It is absent for models without them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LayerInputSize int64 `json:"layerInputSize,omitempty"`
	// vocabularySize is the number of tokens in the output layer.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VocabularySize int64 `json:"vocabularySize,omitempty"`
	// contextTokens is the longest context, in tokens, that the model was
	// trained for.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// keyValueElementBytes is the size of one stored key or value element, in
	// bytes, in the precision of the model: 4 for float32, 2 for half
	// precision. A back end may use a larger type.
	// +optional
	// +kubebuilder:validation:Minimum=0
	KeyValueElementBytes int64 `json:"keyValueElementBytes,omitempty"`
	// weightBytes is the size of the loaded weights, in bytes. It equals the
	// size in the file, except for GGUF types that are converted to a larger
	// type.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WeightBytes int64 `json:"weightBytes,omitempty"`
	// wideWeightBytes is the size of the loaded weights, in bytes, on a back
	// end such as MLX that stores a bias for every scale and keeps float32
	// values of GGUF in float32. It is absent when it equals weightBytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WideWeightBytes int64 `json:"wideWeightBytes,omitempty"`
	// draftWeightBytes is the part of weightBytes that belongs to a draft head. With
	// one, one of the growing layers and half of recurrentStateBytes are its own.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DraftWeightBytes int64 `json:"draftWeightBytes,omitempty"`
	// visionPatches is the largest number of patches of an image. It is absent for a
	// model without image input, like all fields that begin with vision.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionPatches int64 `json:"visionPatches,omitempty"`
	// visionPatchElements is the number of values per patch that the vision
	// tower holds while it computes a layer.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionPatchElements int64 `json:"visionPatchElements,omitempty"`
	// visionHeads is the number of attention heads of the vision tower.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionHeads int64 `json:"visionHeads,omitempty"`
	// visionElements is the number of values that the tokens of the largest
	// image have for the decoder.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionElements int64 `json:"visionElements,omitempty"`
}

// Sees reports whether the model has image input.
func (f Facts) Sees() bool { return f.VisionPatches > 0 }

// Task is what a model is for.
// +kubebuilder:validation:Enum=Generate;Embed;Rerank
type Task string

// The tasks.
const (
	Generate Task = "Generate"
	Embed    Task = "Embed"
	Rerank   Task = "Rerank"
)

// TaskOf returns the task of a model with these facts.
func (f Facts) TaskOf() Task {
	if f.Task == "" {
		return Generate
	}
	return f.Task
}

// SetTask sets the task. It stores Generate as the empty string, as records did
// before other tasks existed.
func (f *Facts) SetTask(t Task) {
	if f.Task = t; t == Generate {
		f.Task = ""
	}
}

// Validate returns an error that names every missing dimension. A model with
// unknown dimensions cannot be admitted anywhere, because unknown never means
// zero bytes.
func (f Facts) Validate() error {
	var missing []string
	for _, d := range []struct {
		name  string
		value int64
	}{
		{"layers", f.Layers}, {"hiddenSize", f.HiddenSize},
		{"feedForwardSize", f.FeedForwardSize}, {"queryHeads", f.QueryHeads}, {"keyValueHeads", f.KeyValueHeads},
		{"headSize", f.HeadSize}, {"vocabularySize", f.VocabularySize}, {"contextTokens", f.ContextTokens},
		{"keyValueElementBytes", f.KeyValueElementBytes}, {"weightBytes", f.WeightBytes},
	} {
		if d.value <= 0 {
			missing = append(missing, d.name)
		}
	}
	if f.Architecture == "" {
		missing = append(missing, "architecture")
	}
	if f.Experts > 0 && (f.ExpertsPerToken <= 0 || f.ExpertsPerToken > f.Experts) {
		missing = append(missing, "expertsPerToken")
	}
	if f.Experts > 0 && f.ExpertFeedForwardSize <= 0 {
		missing = append(missing, "expertFeedForwardSize")
	}
	if f.WindowLayers > 0 && f.WindowTokens <= 0 {
		missing = append(missing, "windowTokens")
	}
	if f.RecurrentLayers > 0 && f.RecurrentStateBytes <= 0 {
		missing = append(missing, "recurrentStateBytes")
	}
	if f.RecurrentLayers > 0 && f.RecurrentSize <= 0 {
		missing = append(missing, "recurrentSize")
	}
	if f.VisionPatches > 0 && min(f.VisionPatchElements, f.VisionHeads, f.VisionElements) <= 0 {
		missing = append(missing, "visionPatchElements, visionHeads or visionElements")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: unknown %s", ErrIncomplete, strings.Join(missing, ", "))
	}
	return f.validateLayers()
}

// validateLayers checks that every layer has exactly one kind of cache.
func (f Facts) validateLayers() error {
	known := int64(0)
	for _, n := range []int64{f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.EncoderLayers, f.StatelessLayers} {
		if n < 0 || n > f.Layers {
			return fmt.Errorf("%w: %d growing, %d window, %d recurrent, %d stateless and %d encoder layers of %d", ErrIncomplete, f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.StatelessLayers, f.EncoderLayers, f.Layers)
		}
		known += n
	}
	if known != f.Layers {
		return fmt.Errorf("%w: growingLayers, windowLayers, recurrentLayers, statelessLayers and encoderLayers add up to %d, but the model has %d layers", ErrIncomplete, known, f.Layers)
	}
	if f.GrowingElements < 0 || f.WindowElements < 0 || f.LayerInputSize < 0 {
		return fmt.Errorf("%w: growingElements is %d, windowElements %d and layerInputSize %d", ErrIncomplete, f.GrowingElements, f.WindowElements, f.LayerInputSize)
	}
	if f.WideWeightBytes < 0 {
		return fmt.Errorf("%w: wideWeightBytes is %d", ErrIncomplete, f.WideWeightBytes)
	}
	if d := f.DraftWeightBytes; d < 0 || d > 0 && (d >= f.WeightBytes || f.GrowingLayers == 0) {
		return fmt.Errorf("%w: draftWeightBytes is %d of %d, with %d growing layers", ErrIncomplete, d, f.WeightBytes, f.GrowingLayers)
	}
	return nil
}

// WithoutDraftHead returns the facts as a back end has them that does not use the draft head.
// WideWeightBytes keeps that head.
func (f Facts) WithoutDraftHead() Facts {
	if f.DraftWeightBytes > 0 {
		f.Layers, f.GrowingLayers, f.RecurrentStateBytes = f.Layers-1, f.GrowingLayers-1, f.RecurrentStateBytes/2
		f.WeightBytes, f.DraftWeightBytes = f.WeightBytes-f.DraftWeightBytes, 0
	}
	return f
}
