// Entry points that are guarded, and some that are not.

bridge_made bridge_good(uint64_t owner, bridge_array *a) {
  return making(owner, [&] { return a->value; });
}

bridge_status bridge_fine(uint64_t owner) {
  return guarded<bridge_status>(owner, [](bridge_status &) {});
}

bridge_row *bridge_alone(int32_t layers) {
  try {
    return new bridge_row(layers);
  } catch (...) {
    return nullptr;
  }
}

bridge_status bridge_bare(uint64_t owner, bridge_array *a) {
  delete a;
  return {};
}

bridge_made bridge_late(uint64_t owner, bridge_array *a) {
  auto b = mx::square(a->value);
  return making(owner, [&] { return b; });
}

bridge_row *bridge_ownerless(int32_t layers) {
  return new bridge_row(layers);
}

int32_t bridge_number(uint64_t owner) {
  return mx::device_count();
}
