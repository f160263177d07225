// Package engine compares the engine's answers on real weights with what mlx-lm
// computed: token ids exactly, greedy tokens while the reference's own margin
// allows, and the largest logits within a tolerance.
//
// make.py writes the record in testdata; compare.sh makes one of other prompts. The
// test carries the build tag oracle, because it needs a model that
// hack/models/fetch.sh downloads.
package engine
