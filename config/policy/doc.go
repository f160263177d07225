// Package policy holds the admission policies that bound what each account may
// do: config/policy has those with values that a site chooses, and config/rbac
// those that always hold.
//
// It owns no code: its tests apply both folders to a real API server and act as
// a tenant, as a person on call, as an administrator, as a Mac and as the
// operator.
package policy
