package fleettest

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
)

// Model returns the record of a small model of one file, with the dimensions of a 135M
// Llama. The seed determines the content, and so the digest.
func Model(source, seed string, weightBytes int64) model.Record {
	sum := sha256.Sum256([]byte(seed))
	r := model.Record{
		Source: source, Format: model.FormatGGUF,
		Files: []model.File{{Path: "model.gguf", Bytes: weightBytes, SHA256: hex.EncodeToString(sum[:])}},
		Facts: model.Facts{
			Architecture: "llama", Quantization: "Q4_1", Layers: 30, GrowingLayers: 30, HiddenSize: 576, FeedForwardSize: 1536,
			QueryHeads: 9, KeyValueHeads: 3, HeadSize: 64, VocabularySize: 49152, ContextTokens: 8192,
			KeyValueElementBytes: 4, WeightBytes: weightBytes,
		},
	}
	r.Digest = model.DigestOf(r.Files)
	if strings.HasPrefix(source, "hf://") {
		r.Commit = hex.EncodeToString(sum[:20])
	}
	return r
}

// Accepted returns a record as the operator stores it in a revision, for every Mac.
func Accepted(r model.Record) model.Record {
	r.VouchedBy = []string{model.VoucherPreview}
	return r
}
