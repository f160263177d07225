// Package charts tests the Helm chart: Helm's own linter, wrong values that the
// schema must refuse, every rendered variant against a real API server, the
// kustomization in config/ against what the chart renders, and a sentence for
// every field of the kinds.
//
// It owns the variants of values and what each must contain. Everything but the
// rendering is judged by programs that are not ours: helm, kube-apiserver and
// its Pod security admission.
//
// What needs Helm has the build tag stories (make test-system); the other tests
// need no program.
//
// Start reading at TestEveryVariantIsValid.
package charts
