"""Operations on tensors: one folder each, with one door, a readable reference and its faster backends."""
