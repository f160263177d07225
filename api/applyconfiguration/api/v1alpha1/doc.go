// Package v1alpha1 has apply configurations of the types in api/v1alpha1: the
// same fields, all optional, for server-side apply of only those that a
// controller owns.
//
// All other files are generated from the Go types by `make generate`, which
// removes configurations of types that are gone.
package v1alpha1
