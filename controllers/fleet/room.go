package fleet

// Room bounds how much of the operator's memory objects of one kind take, in bytes.
type Room struct {
	// Namespace is the most that one namespace may have, and Least what it may have in any case.
	Namespace, Least int
	// All is what all namespaces may have together, but for the least of each.
	All int
}

// Of returns how much a namespace may have while all others have these bytes.
func (r Room) Of(others int) int {
	return min(r.Namespace, max(r.Least, r.All-others))
}
