// Package keda tests that KEDA scales a ModelDeployment: KEDA's own operator and
// its server of external metrics, Kubernetes' own HPA controller and our
// operator run as real processes on a real API server, and scale a deployment to
// zero and back: up from zero by the push, further by the HPA that KEDA makes,
// and never by incomplete figures.
//
// It owns the cluster, KEDA's installation in it, and a gateway that reports the
// demand that the test sets. It refuses to imitate KEDA: its programs are built
// from its own sources. There is no Mac: only the desired number of replicas is
// tested.
//
//	make build kube && bash test/keda/build.sh && go test -count=1 -v -tags stories ./test/keda   (part of make test-system)
//
// Start reading at TestKEDAScalesADeployment.
package keda
