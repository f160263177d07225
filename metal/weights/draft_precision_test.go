package weights

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// TestADraftHeadOfAnotherPrecisionIsNotLoaded: what the model computes would depend on it.
func TestADraftHeadOfAnotherPrecisionIsNotLoaded(t *testing.T) {
	for kind, loaded := range map[quant.Type]bool{quant.BFloat16: true, quant.Float32: false} {
		f := &File{entries: map[string]Entry{}, precise: quant.BFloat16}
		f.addDraft(map[string]Entry{family.DraftPrefix + "fc.weight": {Format: quant.DenseOf(quant.BFloat16)}, family.DraftPrefix + "norm.weight": {Format: quant.DenseOf(kind)}})
		if f.Dim.Drafts != loaded || len(f.entries) > 0 != loaded {
			t.Errorf("a head with %v in a model of bfloat16: loaded %t, want %t", kind, f.Dim.Drafts, loaded)
		}
	}
}
