// Package e2e tests the system as its users get it: a real one-node Kubernetes
// without a way out, the chart installed by Helm, two Macs that join, a model
// applied from a hub, and Pods with the official Python client that ask through
// the Service.
//
// TestStory is what a user does, with a Mac that is cut off, an uninstall and a
// second installation. TestRolling replaces gateways, operators, the chart, the
// agents and the authority under streams. Both use one cluster, which starts once.
//
// It owns the stories, the images, the hub and the Macs. It asserts on what users
// see: answers, conditions, events. It leaves nothing: a process, mount, link,
// control group or network namespace that exists afterwards and did not before
// fails it.
//
// It needs Linux, root, and the programs that `make e2e` builds; the build tag is
// e2e.
//
// Start reading at TestMain, then TestStory.
package e2e
