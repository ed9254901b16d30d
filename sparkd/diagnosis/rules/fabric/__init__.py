"""The network between the nodes: cables, addresses, RDMA, and what NCCL and gloo say of them."""
